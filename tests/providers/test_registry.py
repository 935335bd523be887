"""Providers are built from settings, and what cannot work is refused with its mend."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from leaseq.errors import Misconfigured
from leaseq.providers.base import Provider, StreamingProvider
from leaseq.providers.local import LocalWorker
from leaseq.providers.openai_compatible import OpenAICompatible
from leaseq.providers.registry import build_providers

GOOD: dict[Any, Any] = {
    "ADAPTER": "openai_compatible",
    "BASE_URL": "http://127.0.0.1:8080/v1",
    "MODEL": "small",
}


def made_elsewhere(name: str, config: object) -> LocalWorker:
    """The factory of a third party; it gives its settings no meaning."""
    assert config == {"ROOM": 7}
    return LocalWorker(name=name)


def makes_nothing(name: str, config: object) -> str:
    return name


NO_FACTORY = 7


def test_every_provider_that_settings_name_is_built() -> None:
    built = build_providers({"private": GOOD, "here": {"ADAPTER": "local"}})

    assert list(built) == ["private", "here"]
    assert isinstance(built["private"], OpenAICompatible)
    assert isinstance(built["private"], StreamingProvider)
    assert isinstance(built["here"], LocalWorker)
    assert not isinstance(built["here"], StreamingProvider)
    assert [provider.name for provider in built.values()] == ["private", "here"]


def test_no_settings_build_nothing() -> None:
    assert build_providers({}) == {}


def test_the_local_worker_sends_nothing_and_ends_with_its_holder() -> None:
    here = build_providers({"here": {"ADAPTER": "local"}})["here"]

    assert isinstance(here, Provider)
    assert (here.endpoint, here.model) == ("local", "")
    assert here.capabilities.ends_with_connection


@pytest.mark.parametrize(
    "adapter",
    [f"{__name__}:made_elsewhere", f"{__name__}.made_elsewhere"],
    ids=["with_a_colon", "dotted"],
)
def test_an_adapter_of_a_third_party_is_found_by_its_path(adapter: str) -> None:
    built = build_providers({"theirs": {"ADAPTER": adapter, "ROOM": 7}})

    assert built["theirs"].name == "theirs"


def test_an_adapter_of_a_third_party_is_found_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offered(*, group: str) -> EntryPoints:
        assert group == "leaseq.providers"
        return EntryPoints([EntryPoint("elsewhere", f"{__name__}:made_elsewhere", group)])

    monkeypatch.setattr("leaseq.providers.registry.entry_points", offered)

    built = build_providers({"theirs": {"ADAPTER": "elsewhere", "ROOM": 7}})

    assert built["theirs"].name == "theirs"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(7, "must be a dict", id="no_dict"),
        pytest.param({}, "needs 'ADAPTER'", id="no_adapter"),
        pytest.param({"ADAPTER": None}, "needs 'ADAPTER'", id="adapter_no_text"),
        pytest.param({"ADAPTER": "openai_compatable"}, "did you mean 'openai_comp", id="typo"),
        pytest.param({"ADAPTER": "zzz"}, "known: local, openai_compatible", id="no_such_adapter"),
        pytest.param({"ADAPTER": "no.such.path"}, "cannot be imported", id="no_such_module"),
        pytest.param({"ADAPTER": "json:nothing"}, "'json:nothing'", id="no_such_name"),
        pytest.param({"ADAPTER": "..."}, "cannot be imported", id="no_path"),
        pytest.param({"ADAPTER": f"{__name__}:NO_FACTORY"}, "is no factory", id="no_factory"),
        pytest.param({"ADAPTER": f"{__name__}:makes_nothing"}, "no Provider", id="no_provider"),
        pytest.param({"ADAPTER": "local", "MODEL": "m"}, "takes none", id="local_takes_nothing"),
        pytest.param({**GOOD, "BASE_ULR": "x"}, "did you mean 'BASE_URL'", id="unknown_key"),
        pytest.param({**GOOD, 7: "x"}, "has no key 7", id="key_no_text"),
        pytest.param({**GOOD, "MODEL": ""}, "needs 'MODEL'", id="no_model"),
        pytest.param({**GOOD, "BASE_URL": None}, "needs 'BASE_URL'", id="no_url"),
        pytest.param({**GOOD, "BASE_URL": "localhost:8080"}, "begins with", id="no_scheme"),
        pytest.param({**GOOD, "BASE_URL": "file:///etc/passwd"}, "begins with", id="file"),
        pytest.param({**GOOD, "BASE_URL": "http:///v1"}, "names no host", id="no_host"),
        pytest.param({**GOOD, "BASE_URL": "http://h:99999/v1"}, "no host and port", id="port"),
        pytest.param({**GOOD, "BASE_URL": "http://[::1/v1"}, "no host and port", id="bracket"),
        pytest.param({**GOOD, "BASE_URL": f"http://{'a' * 64}/"}, "no host and", id="long_label"),
        pytest.param({**GOOD, "BASE_URL": "http://h/v1?a=b"}, "query", id="query"),
        pytest.param({**GOOD, "BASE_URL": "http://h/v1#a"}, "fragment", id="fragment"),
        pytest.param({**GOOD, "BASE_URL": "http://h/v 1"}, "a blank", id="blank"),
        pytest.param({**GOOD, "BASE_URL": "http://h/\nv1"}, "a blank", id="line_break"),
        pytest.param({**GOOD, "BASE_URL": "http://hüt/v1"}, "a sign", id="not_ascii"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": 5}, "no dict", id="timeouts_no_dict"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"reed": 5}}, "'read'", id="unknown_timeout"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"read": 0}}, "above 0", id="no_time"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"read": True}}, "seconds", id="time_is_yes"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"read": "5"}}, "seconds", id="time_is_text"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"total": float("inf")}}, "week", id="for_ever"),
        pytest.param({**GOOD, "TIMEOUT_SECONDS": {"total": float("nan")}}, "week", id="nan"),
        pytest.param({**GOOD, "API_KEY": {}}, "no reference", id="empty_reference"),
        pytest.param({**GOOD, "API_KEY": {"env": 7}}, "no reference", id="env_no_text"),
        pytest.param({**GOOD, "API_KEY": {"file": "x"}}, "no reference", id="unknown_reference"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_their_mend(config: Any, message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        build_providers({"private": config})

    assert "LEASEQ['PROVIDERS']['private']" in str(refused.value)
    assert message in str(refused.value)


def test_a_secret_in_settings_is_refused_and_not_shown() -> None:
    with pytest.raises(Misconfigured, match="'env'") as refused:
        build_providers({"private": {**GOOD, "API_KEY": "sk-live-1234"}})

    assert "sk-live-1234" not in str(refused.value)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(Misconfigured, match="'API_KEY'") as refused:
        build_providers({"private": {**GOOD, "BASE_URL": "http://me:hunter2@h/v1"}})

    assert "hunter2" not in str(refused.value)


def test_a_slash_at_the_end_of_a_url_makes_no_second_one() -> None:
    built = build_providers({"private": {**GOOD, "BASE_URL": "http://h/v1/"}})

    assert built["private"].endpoint == "http://h/v1/chat/completions"
