"""Which process is this, and is another one provably gone (SPEC D7, L5a, M8)."""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from leaseq.worker import presence
from leaseq.worker.presence import (
    NODE_VARIABLE,
    ProcessIdentity,
    die_with_parent,
    is_dead,
    own_identity,
    start_ticks_of,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PATIENCE = 20.0
SAY_WHO = """
import sys
from leaseq.worker.presence import own_identity
print(*[own_identity().boot_id, own_identity().pid, own_identity().start_ticks], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that does nothing until its input ends."""
    started = subprocess.Popen(
        [sys.executable, "-c", SAY_WHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield started
    started.kill()
    started.wait(PATIENCE)
    for end in (started.stdin, started.stdout):
        assert end is not None
        end.close()


@pytest.fixture
def identity(other: subprocess.Popen[bytes]) -> ProcessIdentity:
    """What the other process says of itself."""
    assert other.stdout is not None
    boot_id, pid, ticks = other.stdout.readline().decode().split()
    return ProcessIdentity(own_identity().node, boot_id, int(pid), int(ticks))


def kill_unreaped(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


# -- identity ----------------------------------------------------------------------------------


def test_a_process_says_the_same_of_itself_as_others_see(
    other: subprocess.Popen[bytes], identity: ProcessIdentity
) -> None:
    assert identity.pid == other.pid
    assert identity.start_ticks == start_ticks_of(other.pid)
    assert identity.boot_id == own_identity().boot_id
    assert identity != own_identity()


def test_the_boot_id_fits_its_column() -> None:
    assert 36 < len(own_identity().boot_id) <= 64


def test_the_node_is_the_host_or_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(NODE_VARIABLE, raising=False)
    assert own_identity().node == os.uname().nodename
    monkeypatch.setenv(NODE_VARIABLE, "gpu-7")
    assert own_identity().node == "gpu-7"


def test_a_command_with_brackets_and_spaces_is_read_right() -> None:
    name = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) R 1 (b', 0, 0, 0); "
    program = name + "print(flush=True); sys.stdin.read()"
    plain = "import sys; print(flush=True); sys.stdin.read()"
    ticks = []
    for code in (plain, program):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as started:
            assert started.stdout is not None
            started.stdout.readline()
            ticks.append(start_ticks_of(started.pid))
            assert started.stdin is not None
            started.stdin.close()
    assert ticks[0] is not None
    assert ticks[1] is not None
    assert ticks[0] <= ticks[1] < ticks[0] + 100 * PATIENCE


# -- alive, dead, or not to be known -----------------------------------------------------------


def test_a_living_process_is_not_dead(identity: ProcessIdentity) -> None:
    assert is_dead(own_identity()) is False
    assert is_dead(identity) is False


def test_a_stopped_process_is_not_dead(
    other: subprocess.Popen[bytes], identity: ProcessIdentity
) -> None:
    other.send_signal(signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    assert is_dead(identity) is False


def test_a_zombie_is_dead_before_anybody_reaped_it(
    other: subprocess.Popen[bytes], identity: ProcessIdentity
) -> None:
    kill_unreaped(other)
    assert start_ticks_of(other.pid) == identity.start_ticks
    assert is_dead(identity) is True


def test_a_reaped_process_is_dead(
    other: subprocess.Popen[bytes], identity: ProcessIdentity
) -> None:
    other.kill()
    other.wait(PATIENCE)
    assert is_dead(identity) is True


def test_a_later_process_under_the_same_pid_is_another(identity: ProcessIdentity) -> None:
    assert is_dead(replace(identity, start_ticks=identity.start_ticks - 1)) is True


def test_an_earlier_boot_of_this_machine_took_its_processes_with_it(
    identity: ProcessIdentity,
) -> None:
    boot = "00000000-0000-4000-8000-000000000000"
    rest = identity.boot_id.partition("/")[2]
    assert is_dead(replace(identity, boot_id=f"{boot}/{rest}")) is True


@pytest.mark.parametrize("part", [1, 2], ids=["pid namespace", "time namespace"])
def test_a_process_counted_in_another_namespace_cannot_be_known(
    identity: ProcessIdentity, part: int
) -> None:
    parts = identity.boot_id.split("/")
    parts[part] = "1"
    assert is_dead(replace(identity, boot_id="/".join(parts), start_ticks=1)) is None


@pytest.mark.parametrize(
    "unknown",
    [{"node": "elsewhere"}, {"boot_id": ""}, {"pid": 0}, {"pid": -1}, {"start_ticks": 0}],
    ids=["another node", "no boot id", "no pid", "a process group", "no start"],
)
def test_what_was_not_recorded_here_cannot_be_known(
    identity: ProcessIdentity, unknown: dict[str, str | int]
) -> None:
    assert is_dead(replace(identity, **unknown)) is None  # type: ignore[arg-type]


def test_another_node_cannot_be_known_even_after_its_boot_changed(
    identity: ProcessIdentity,
) -> None:
    assert is_dead(replace(identity, node="elsewhere", boot_id="x/1/1")) is None


# -- a /proc that shows less, or something rare ------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of our own: the true boot id and namespaces, and no process."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b00t\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[11]")
    (tmp_path / "self/ns/time").symlink_to("time:[22]")
    monkeypatch.setattr(presence, "PROC", tmp_path)
    return tmp_path


def here(pid: int) -> ProcessIdentity:
    return ProcessIdentity(presence.node_name(), "b00t/11/22", pid, 7)


def show(proc: Path, pid: int, *, state: str, threads: int) -> None:
    fields = [state, *["0"] * 16, str(threads), "0", "7", *["0"] * 30]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a b) {' '.join(fields)}\n")


@pytest.mark.parametrize(
    ("state", "threads", "dead"),
    [
        ("R", 1, False),
        ("D", 1, False),
        ("T", 1, False),
        ("Z", 1, True),
        ("X", 0, True),
        ("Z", 3, False),
    ],
    ids=["running", "in the kernel", "stopped", "zombie", "gone", "main thread ended"],
)
def test_the_state_of_a_process_decides(proc: Path, state: str, threads: int, dead: bool) -> None:
    show(proc, 4242, state=state, threads=threads)
    assert is_dead(here(4242)) is dead


@pytest.mark.usefixtures("proc")
def test_a_process_that_is_hidden_from_us_cannot_be_known() -> None:
    assert is_dead(here(os.getpid())) is None


@pytest.mark.usefixtures("proc")
def test_a_pid_that_the_kernel_does_not_know_is_free(other: subprocess.Popen[bytes]) -> None:
    other.kill()
    other.wait(PATIENCE)
    assert is_dead(here(other.pid)) is True


def test_without_time_namespaces_the_rest_still_counts(proc: Path) -> None:
    (proc / "self/ns/time").unlink()
    assert presence.boot_id() == "b00t/11/0"


def test_without_proc_nothing_is_known(proc: Path) -> None:
    (proc / "sys/kernel/random/boot_id").unlink()
    assert own_identity().boot_id == ""
    assert is_dead(own_identity()) is None


# -- dying with the parent ---------------------------------------------------------------------

PARENT = """
import os
from leaseq.worker.presence import die_with_parent
parent = os.getpid()
if os.fork() == 0:
    while {late} and os.getppid() == parent:
        pass
    if {asks}:
        die_with_parent(parent_pid=parent)
    os.write(1, b"child %d\\n" % os.getpid())
    while True:
        os.read(0, 1)
os.write(1, b"parent\\n")
while True:
    os.read(0, 1)
"""


@contextmanager
def family(*, asks: bool, late: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A parent and its child that wait for ever; what both say comes through one pipe.

    A late child acts only once its parent is gone.
    """
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(asks=asks, late=late)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def lines(parent: subprocess.Popen[bytes], count: int) -> list[str]:
    assert parent.stdout is not None
    return sorted(parent.stdout.readline().decode().strip() for _ in range(count))


def rest(parent: subprocess.Popen[bytes]) -> bytes:
    """Read until every process that holds the other end is gone."""
    assert parent.stdout is not None
    text = b""
    while True:
        assert select.select([parent.stdout], [], [], PATIENCE)[0], "somebody still lives"
        got = os.read(parent.stdout.fileno(), 4096)
        if not got:
            return text
        text += got


def test_a_child_that_asked_dies_with_its_parent() -> None:
    with family(asks=True, late=False) as parent:
        assert lines(parent, 2)[1] == "parent"
        parent.kill()
        assert rest(parent) == b""


def test_a_child_that_asks_after_its_parent_died_dies_at_once() -> None:
    with family(asks=True, late=True) as parent:
        assert lines(parent, 1) == ["parent"]
        parent.kill()
        assert rest(parent) == b""


def test_a_child_that_did_not_ask_lives_on() -> None:
    with family(asks=False, late=True) as parent:
        assert lines(parent, 1) == ["parent"]
        parent.kill()
        orphan = int(lines(parent, 1)[0].removeprefix("child "))
        assert start_ticks_of(orphan) is not None
        os.kill(orphan, signal.SIGKILL)
        assert rest(parent) == b""


class SelfKilledError(Exception):
    """Stands in for the SIGKILL that a process sends itself."""


def test_a_parent_that_dies_while_the_kernel_is_asked_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([4242, 1])
    asked: list[tuple[int, ...]] = []

    def prctl(*arguments: int) -> int:
        asked.append(arguments)
        return 0

    def die() -> None:
        raise SelfKilledError

    monkeypatch.setattr(os, "getppid", lambda: next(seen))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(presence, "_die", die)
    with pytest.raises(SelfKilledError):
        die_with_parent(parent_pid=4242)
    assert asked == [(1, signal.SIGKILL, 0, 0, 0)]


def test_a_kernel_that_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = SimpleNamespace(prctl=lambda *_: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: refuses)
    assert die_with_parent(parent_pid=os.getppid()) is False


def test_a_process_that_is_not_our_parent_is_not_followed(identity: ProcessIdentity) -> None:
    assert die_with_parent(parent_pid=identity.pid) is False


def test_where_there_is_no_such_signal_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert die_with_parent(parent_pid=os.getppid()) is False
