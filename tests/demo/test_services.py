"""The embedded services: they come up, keep data, refuse clearly, and leave nothing behind."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from leaseq.errors import Misconfigured
from project.demo import services
from project.demo.processes import EmbeddedService
from project.demo.services import (
    EmbeddedBroker,
    EmbeddedPostgres,
)

ROOT = Path(services.__file__).parents[2]
GONE_WITHIN_S = 20

Maker = Callable[[Path | None], EmbeddedService]

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses pidfd and death signals")


def quick_postgres(folder: Path | None, *, port: int | None = None) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, fsync=False, shared_buffers="16MB", port=port)


def durable_broker(folder: Path | None, *, port: int | None = None) -> EmbeddedBroker:
    return EmbeddedBroker(folder, append_only=True, port=port)


both = pytest.mark.parametrize("make", [quick_postgres, durable_broker], ids=["postgres", "broker"])


def write(service: EmbeddedService) -> None:
    if isinstance(service, EmbeddedPostgres):
        with psycopg.connect(service.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    elif isinstance(service, EmbeddedBroker):
        with Redis.from_url(service.url) as client:
            client.set("answer", 42)


def read(service: EmbeddedService) -> int:
    if isinstance(service, EmbeddedPostgres):
        with psycopg.connect(service.url) as connection:
            row = connection.execute("SELECT answer FROM kept").fetchone()
        return -1 if row is None else int(row[0])
    assert isinstance(service, EmbeddedBroker)
    with Redis.from_url(service.url) as client:
        return int(client.get("answer") or -1)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def await_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], GONE_WITHIN_S)[0], f"process {pid} still lives"
    finally:
        os.close(handle)


def start_owner(script: str) -> subprocess.Popen[str]:
    """Run a Python program that owns services and prints one line when they answer."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


OWNER = """
import sys, threading
from pathlib import Path
import psycopg, redis
from project.demo.services import EmbeddedBroker, EmbeddedPostgres
folders = [Path(word) for word in {folders!r}] or [None, None]
database = EmbeddedPostgres(folders[0], fsync=False)
broker = EmbeddedBroker(folders[1], append_only=True)
threads = [threading.Thread(target=service.start) for service in (database, broker)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with psycopg.connect(database.url) as connection:
    connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
redis.Redis.from_url(broker.url).set("answer", 42)
print(*(f"{{one.pid}} {{one.log_path.parent}}" for one in (database, broker)), flush=True)
sys.stdin.read()
"""


def owned_by_another(*folders: Path) -> tuple[subprocess.Popen[str], list[int], list[Path]]:
    """Start both services in another process, from threads that end before it answers."""
    owner = start_owner(OWNER.format(folders=[str(folder) for folder in folders]))
    assert owner.stdout is not None
    words = owner.stdout.readline().split()
    assert len(words) == 4, f"the owner did not start: {words}"
    return owner, [int(word) for word in words[::2]], [Path(word) for word in words[1::2]]


def end_owner(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate(timeout=GONE_WITHIN_S)


@both
def test_a_temporary_service_leaves_neither_process_nor_folder(make: Maker) -> None:
    with make(None) as service:
        write(service)
        pid, folder = service.pid, service.log_path.parent
        assert read(service) == 42
        assert folder.is_dir()

    assert not is_alive(pid)
    assert not folder.exists()
    assert not service.is_running


@both
def test_a_stop_and_a_start_keep_the_data(make: Maker, folder: Path) -> None:
    with make(folder) as service:
        write(service)
        first_pid = service.pid

    with make(folder) as service:
        assert service.pid != first_pid
        assert read(service) == 42


@both
def test_a_start_after_a_crash_keeps_the_data(make: Maker) -> None:
    with make(None) as service:
        write(service)
        os.kill(service.pid, signal.SIGKILL)
        await_end(service.pid)
        assert service.start().is_running
        assert read(service) == 42


@both
def test_starting_and_stopping_again_changes_nothing(make: Maker) -> None:
    with make(None) as service:
        pid = service.pid
        assert service.start().pid == pid
        service.stop()
        service.stop()
        assert not is_alive(pid)


@both
def test_two_run_at_once_and_share_nothing(make: Maker) -> None:
    with make(None) as first, make(None) as second:
        write(first)
        assert first.port != second.port
        if isinstance(second, EmbeddedPostgres):
            with psycopg.connect(second.url) as connection:
                found = connection.execute("SELECT to_regclass('kept')").fetchone()
            assert found == (None,)
        else:
            assert isinstance(second, EmbeddedBroker)
            with Redis.from_url(second.url) as client:
                assert client.get("answer") is None


@both
def test_a_folder_in_use_is_refused_and_its_holder_goes_on(make: Maker, folder: Path) -> None:
    with make(folder) as holder:
        write(holder)
        with pytest.raises(Misconfigured, match=f"in use .* process {os.getpid()}: stop that"):
            make(folder).start()
        assert read(holder) == 42


@both
def test_a_taken_port_is_refused_and_nothing_starts(
    make: Callable[..., EmbeddedService], folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = make(folder, port=taken.getsockname()[1])
        with pytest.raises(Misconfigured, match="which is taken: stop what listens there"):
            service.start()

    assert not service.is_running
    with make(folder) as later:
        assert later.is_running


@both
def test_a_process_that_is_not_the_owner_cannot_stop_it(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(None) as service:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            service.stop()
        write(service)
        assert read(service) == 42


@needs_linux
def test_an_owner_killed_leaves_no_process_and_the_data_can_be_used_again(folder: Path) -> None:
    owner, pids, _ = owned_by_another(folder / "postgres", folder / "broker")
    assert all(is_alive(pid) for pid in pids)

    end_owner(owner)

    # At once: the old servers may still be on their way out.
    with quick_postgres(folder / "postgres") as database, durable_broker(folder / "broker") as box:
        assert read(database) == 42
        assert read(box) == 42
        for pid in pids:
            await_end(pid)


@needs_linux
def test_an_owner_that_ends_without_stopping_leaves_nothing() -> None:
    owner, pids, folders = owned_by_another()
    owner.communicate("", timeout=GONE_WITHIN_S)

    assert owner.returncode == 0
    assert not any(is_alive(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)


@needs_linux
def test_the_folders_of_a_killed_owner_are_swept_by_the_next() -> None:
    owner, pids, folders = owned_by_another()
    end_owner(owner)
    for pid in pids:
        await_end(pid)
    assert all(folder.exists() for folder in folders)

    with quick_postgres(None), durable_broker(None):
        assert not any(folder.exists() for folder in folders)
