"""Each misconfiguration has an id, a failing example and a mend; a sound project has none."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, current_app
from django.core.checks import CheckMessage, Tags, run_checks
from django.core.checks.registry import registry
from django.db import connections
from django.test import override_settings
from django_celery_beat.models import PeriodicTask
from psycopg import IsolationLevel

from leaseq import checks
from leaseq.db import clock
from leaseq.models import ControlPass, Job, ServingPolicy
from leaseq.services import passes, ports
from leaseq.worker import beat_rows, consumers

DATABASES = ["default"]
INSTANT = timedelta(microseconds=1)


@pytest.fixture(autouse=True)
def no_worker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no broker that this test did not start."""
    monkeypatch.setattr(consumers, "control_queue_is_consumed", lambda _app: None)


def ids(found: list[CheckMessage]) -> list[str | None]:
    return [one.id for one in found]


def only(found: list[CheckMessage], message_id: str) -> CheckMessage:
    """Return the one message there is, which must name a mend."""
    [message] = found
    assert message.id == message_id
    assert message.hint
    return message


def with_options(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)


@pytest.fixture
def celery_app() -> Iterator[Celery]:
    """A Celery app of its own in place of the project's."""
    before = current_app._get_current_object()  # type: ignore[attr-defined]
    app = Celery("checked", broker="memory://")
    app.set_current()
    yield app
    before.set_current()


def test_the_project_as_it_ships_passes_every_check_without_the_database() -> None:
    assert ids(run_checks(tags=[checks.TAG])) == []


@pytest.mark.django_db
def test_the_project_passes_every_check_of_the_database_once_its_rows_are_installed() -> None:
    beat_rows.install(reset=False)
    assert ids(run_checks(tags=[checks.TAG], databases=DATABASES)) == []


def test_every_check_is_connected_and_those_of_the_database_wait_to_be_asked() -> None:
    from_database: set[Any] = {
        checks.check_beat_rows,
        checks.check_control_plane,
        checks.check_policies,
    }
    registered = registry.registered_checks
    ours: set[Any] = {one for one in registered if checks.TAG in getattr(one, "tags", ())}
    every: set[Any] = {getattr(checks, name) for name in dir(checks) if name.startswith("check_")}
    assert ours == every
    assert {one for one in ours if Tags.database in getattr(one, "tags", ())} == from_database


@pytest.mark.parametrize(
    "check",
    [checks.check_beat_rows, checks.check_control_plane, checks.check_policies],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("databases", [None, [], ["other"]], ids=str)
def test_no_check_asks_a_database_unless_it_is_named(
    check: Callable[..., list[CheckMessage]], databases: list[str] | None
) -> None:
    # This test has no database fixture: a query would fail it.
    assert check(databases=databases) == []


def test_e001_use_tz_is_off() -> None:
    with override_settings(USE_TZ=False):
        message = only(checks.check_time_zone(), "leaseq.E001")
    assert "USE_TZ = True" in str(message.hint)


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"accept_content": ["json", "pickle"]}, "pickle"),
        ({"accept_content": ["json", "yaml"]}, "yaml"),
        ({"accept_content": ["application/x-python-serialize"]}, "python-serialize"),
        ({"accept_content": ["json"], "result_accept_content": ["pickle"]}, "pickle"),
    ],
    ids=["pickle", "yaml", "pickle-by-its-type", "pickled-results"],
)
def test_e002_celery_takes_unsafe_content(
    celery_app: Celery, conf: dict[str, list[str]], named: str
) -> None:
    celery_app.conf.update(conf)
    message = only(checks.check_content_types(), "leaseq.E002")
    assert named in message.msg
    assert "['json']" in str(message.hint)


@pytest.mark.parametrize("name", ["CELERY_ACCEPT_CONTENT", "CELERY_RESULT_ACCEPT_CONTENT"], ids=str)
def test_e002_also_where_the_django_process_does_not_load_the_app(
    celery_app: Celery, name: str
) -> None:
    with override_settings(**{name: ["json", "pickle"]}):
        only(checks.check_content_types(), "leaseq.E002")


def test_json_and_msgpack_are_safe(celery_app: Celery) -> None:
    celery_app.conf.update(accept_content=["json", "msgpack"])
    assert checks.check_content_types() == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"CONTROL_QUEU": "x"}, "did you mean 'CONTROL_QUEUE'?"),
        ({"SWEEP_SECONDS": 0}, "SWEEP_SECONDS"),
        ({"CONTROL_QUEUE": "leaseq"}, "the same queue"),
        (["DATABASE"], "must be a dict"),
    ],
    ids=["unknown-key", "not-above-zero", "one-queue-for-both", "not-a-dict"],
)
def test_e003_leaseq_cannot_work_and_the_other_checks_keep_quiet(given: Any, named: str) -> None:
    with override_settings(LEASEQ=given):
        message = only(run_checks(tags=[checks.TAG], databases=DATABASES), "leaseq.E003")
    assert named in message.msg


def test_e004_the_alias_is_missing() -> None:
    with override_settings(LEASEQ={"DATABASE": "authority"}):
        message = only(run_checks(tags=[checks.TAG], databases=DATABASES), "leaseq.E004")
    assert "'authority'" in message.msg


def test_e004_the_authority_is_not_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    message = only(run_checks(tags=[checks.TAG], databases=DATABASES), "leaseq.E004")
    assert "sqlite" in message.msg
    assert "django.db.backends.postgresql" in str(message.hint)


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        ({"API_KEY": "sk-123"}, "['p']['API_KEY']"),
        ({"api_key": b"sk-123"}, "['p']['api_key']"),
        ({"WEBHOOK_SECRET": "x"}, "['p']['WEBHOOK_SECRET']"),
        ({"TOKEN": {"value": "x"}}, "['p']['TOKEN']['value']"),
        ({"SIGNING_KEYS_SECRET": ["old", {"env": "NEW"}]}, "['p']['SIGNING_KEYS_SECRET'][0]"),
        ({"HEADERS": {"Authorization": "Bearer x"}}, "['p']['HEADERS']['Authorization']"),
    ],
    ids=["text", "bytes", "another-name", "in-a-dict", "in-a-list", "in-a-header"],
)
def test_e005_a_secret_stands_in_the_settings_and_is_not_shown(
    provider: dict[str, Any], path: str
) -> None:
    with override_settings(LEASEQ={"PROVIDERS": {"p": provider}}):
        message = only(checks.check_secrets(), "leaseq.E005")
    assert message.msg.endswith(f"at {path}.")
    assert "sk-123" not in str(message)


@pytest.mark.parametrize(
    "provider",
    [
        {"API_KEY": None},
        {"API_KEY": {"env": "MODEL_API_KEY"}},
        {"API_KEY": lambda: "fetched"},
        {"API_KEY": ""},
        {"MODEL": "key", "BASE_URL": "http://127.0.0.1:8080/v1", "ADAPTER": "token"},
    ],
    ids=["none", "a-variable", "a-callable", "empty", "no-secret-by-its-name"],
)
def test_references_are_no_secrets(provider: dict[str, Any]) -> None:
    with override_settings(LEASEQ={"PROVIDERS": {"p": provider}}):
        assert checks.check_secrets() == []


TIMEOUTS = {"connect_timeout": 5, "tcp_user_timeout": 3000}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"isolation_level": IsolationLevel.READ_COMMITTED}, []),
        ({"isolation_level": IsolationLevel.REPEATABLE_READ}, ["leaseq.W001"]),
        ({"isolation_level": IsolationLevel.SERIALIZABLE}, ["leaseq.W001"]),
        ({"options": "-c default_transaction_isolation=serializable"}, ["leaseq.W001"]),
        ({"options": "-c statement_timeout=5000"}, []),
    ],
    ids=[
        "default",
        "read-committed",
        "repeatable-read",
        "serializable",
        "by-a-server-option",
        "another-option",
    ],
)
def test_w001_isolation(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: list[str]
) -> None:
    with_options(monkeypatch, TIMEOUTS | options)
    assert ids(checks.check_isolation()) == expected


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"connect_timeout": 5}, "tcp_user_timeout"),
        ({"tcp_user_timeout": 3000}, "connect_timeout"),
        ({}, "connect_timeout and no tcp_user_timeout"),
    ],
    ids=["no-tcp-user-timeout", "no-connect-timeout", "neither"],
)
def test_w002_a_hanging_connection_would_hang_for_minutes(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], missing: str
) -> None:
    with_options(monkeypatch, options)
    message = only(checks.check_timeouts(), "leaseq.W002")
    assert missing in message.msg


@pytest.mark.django_db
def test_w003_names_each_row_that_is_missing_disabled_or_sent_elsewhere() -> None:
    assert len(checks.check_beat_rows(databases=DATABASES)) == 5
    beat_rows.install(reset=False)
    PeriodicTask.objects.filter(name="leaseq: renew").delete()
    PeriodicTask.objects.filter(name="leaseq: expire").update(enabled=False)
    PeriodicTask.objects.filter(name="leaseq: settle").update(queue="gpu")
    found = checks.check_beat_rows(databases=DATABASES)
    assert ids(found) == ["leaseq.W003"] * 3
    assert [one.msg for one in found] == [
        "The beat row 'leaseq: renew' is missing.",
        "The beat row 'leaseq: expire' is disabled: disabled.",
        "The beat row 'leaseq: settle' is misrouted: queue is gpu, ships as leaseq-control.",
    ]
    assert all("leaseq schedule" in str(one.hint) for one in found)


@pytest.mark.django_db
def test_w003_lets_an_operators_interval_be() -> None:
    beat_rows.install(reset=False)
    PeriodicTask.objects.filter(name="leaseq: expire").update(expire_seconds=7)
    assert checks.check_beat_rows(databases=DATABASES) == []


@pytest.mark.parametrize(
    ("silent_for", "expected"),
    [
        (timedelta(seconds=50) - INSTANT, []),
        (timedelta(seconds=50), ["leaseq.W004"]),
        (timedelta(seconds=50) + INSTANT, ["leaseq.W004"]),
    ],
    ids=["just-before", "at", "after"],
)
def test_w004_jobs_wait_and_the_control_plane_is_silent(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    silent_for: timedelta,
    expected: list[str],
) -> None:
    for name in checks.WATCHED_PASSES:
        passes.note(name, counts={}, complete=True, left_off={})
    now = ControlPass.objects.get(name="schedule").finished_at + silent_for
    monkeypatch.setattr(clock, "read", lambda: now)
    found = checks.check_control_plane(databases=DATABASES)
    assert ids(found) == expected
    assert all("'leaseq-control'" in one.msg for one in found)
    assert all("--queues leaseq-control" in str(one.hint) for one in found)


@pytest.mark.parametrize(
    ("waited", "expected"),
    [
        (timedelta(seconds=50) - INSTANT, []),
        (timedelta(seconds=50), ["leaseq.W004"]),
    ],
    ids=["just-before", "at"],
)
def test_w004_also_where_no_pass_ever_finished(
    job: Job, monkeypatch: pytest.MonkeyPatch, waited: timedelta, expected: list[str]
) -> None:
    monkeypatch.setattr(clock, "read", lambda: job.submitted_at + waited)
    assert ids(checks.check_control_plane(databases=DATABASES)) == expected


@pytest.mark.parametrize(
    ("consumed", "cause"),
    [
        (True, "so it seems that no beat runs"),
        (False, "no worker consumes the queue 'leaseq-control'"),
        (None, "no worker answered whether it consumes the queue 'leaseq-control'"),
    ],
)
def test_w004_says_who_is_missing(
    job: Job, monkeypatch: pytest.MonkeyPatch, consumed: bool | None, cause: str
) -> None:
    monkeypatch.setattr(clock, "read", lambda: job.submitted_at + timedelta(minutes=5))
    monkeypatch.setattr(consumers, "control_queue_is_consumed", lambda _app: consumed)
    (found,) = checks.check_control_plane(databases=DATABASES)
    assert cause in found.msg


@pytest.mark.django_db
def test_w004_is_silent_where_nothing_waits() -> None:
    assert checks.check_control_plane(databases=DATABASES) == []


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (timedelta(seconds=10) - INSTANT, ["leaseq.W005"]),
        (timedelta(seconds=10), []),
        (timedelta(seconds=10) + INSTANT, []),
    ],
    ids=["just-below", "at", "above"],
)
def test_w005_the_renewal_pass_comes_too_seldom_for_a_policy(
    policy: ServingPolicy, ttl: timedelta, expected: list[str]
) -> None:
    policy.lease_ttl, policy.renew_every = ttl, timedelta(seconds=1)
    policy.save()
    assert ids(checks.check_policies(databases=DATABASES)) == expected


def test_w005_is_mended_by_a_faster_sweep(policy: ServingPolicy) -> None:
    policy.lease_ttl, policy.renew_every = timedelta(seconds=2), timedelta(milliseconds=500)
    policy.save()
    message = only(checks.check_policies(databases=DATABASES), "leaseq.W005")
    assert "'batch'" in message.msg
    with override_settings(LEASEQ={"SWEEP_SECONDS": 1}):
        assert checks.check_policies(databases=DATABASES) == []


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ({"ADAPTER": "openai", "BASE_URL": "http://127.0.0.1:1/v1", "MODEL": "m"}, "'openai'"),
        ({"ADAPTER": "openai_compatible", "BASEURL": "http://127.0.0.1:1/v1"}, "BASE_URL"),
    ],
)
def test_e006_a_provider_that_cannot_be_built(provider: dict[str, str], said: str) -> None:
    with override_settings(LEASEQ={"PROVIDERS": {"private": provider}}):
        (found,) = checks.check_providers()
    assert found.id == "leaseq.E006"
    assert said in found.msg
    assert checks.check_providers() == []


def test_e007_no_app_is_wired(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_wiring() == []
    monkeypatch.setattr(ports, "_installed", [])
    (found,) = checks.check_wiring()
    assert found.id == "leaseq.E007"
    assert "leaseq.worker.wiring.install(app)" in str(found.hint)
