"""The hard stop: after the grace and never before, and never a stranger (SPEC D4)."""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief, Proof
from leaseq.vocabulary import Certainty
from leaseq.worker import stop
from leaseq.worker.board import Board
from leaseq.worker.presence import start_ticks_of
from leaseq.worker.stop import Stopper
from tests.worker.board_claims import LATER, PROOF, word
from tests.worker.conftest import DEADLINE_SECONDS

GRACE_S = 3.0
LOST = word(certainty=Certainty.LOST)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(tmp_path / "board", cells=4)
    yield made
    made.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that hears nothing but a kill."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.fixture
def stopper(board: Board) -> Stopper:
    return Stopper(board, grace_of=lambda _proof: timedelta(seconds=GRACE_S))


def hold(
    board: Board,
    process: subprocess.Popen[bytes],
    *,
    proof: Proof = PROOF,
    ticks_off: int = 0,
    until: float | None = None,
) -> None:
    now = boot_seconds()
    board.hold(
        0,
        pid=process.pid,
        start_ticks=(start_ticks_of(process.pid) or 0) + ticks_off,
        proof=proof,
        ttl=timedelta(seconds=30),
        renew_every=timedelta(seconds=10),
        claimed_at=now,
        deadline=Deadline(now + 30 if until is None else until),
    )


def is_running(process: subprocess.Popen[bytes]) -> bool:
    """A killed child is a zombie until it is waited for, and this waits for it."""
    return process.poll() is None


def demand_killed(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize(
    "belief", [LOST, replace(word(), cancel_asked=True)], ids=["lost", "cancelled"]
)
def test_a_task_that_does_not_stop_is_killed_after_the_grace_and_not_before(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper, belief: Belief
) -> None:
    hold(board, process)
    board.publish(0, PROOF, belief, renewals=1)
    now = boot_seconds()
    stopper.look(now)
    stopper.look(now + GRACE_S - 0.001)
    assert is_running(process)
    stopper.look(now + GRACE_S)
    demand_killed(process)
    stopper.look(now + GRACE_S + 1)


def test_a_deadline_that_passes_unheard_stops_the_task_too(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper
) -> None:
    now = boot_seconds()
    hold(board, process, until=now + 1)
    stopper.look(now)
    stopper.look(now + 1)
    stopper.look(now + 1 + GRACE_S - 0.001)
    assert is_running(process)
    stopper.look(now + 1 + GRACE_S)
    demand_killed(process)


@pytest.mark.parametrize(
    "certainty", [Certainty.CERTAIN, Certainty.UNCERTAIN], ids=["certain", "uncertain"]
)
def test_whoever_may_still_hold_its_lease_is_never_killed(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper, certainty: Certainty
) -> None:
    hold(board, process)
    board.publish(0, PROOF, word(certainty=certainty, lasts=1000), renewals=1)
    now = boot_seconds()
    stopper.look(now)
    stopper.look(now + 100)
    assert is_running(process)


def test_a_word_about_another_lease_kills_nobody(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper
) -> None:
    hold(board, process, until=boot_seconds() + 1000)
    board.publish(0, LATER, LOST, renewals=1)
    now = boot_seconds()
    stopper.look(now)
    stopper.look(now + 100)
    assert is_running(process)


def test_a_process_that_took_over_the_pid_is_not_killed(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper
) -> None:
    hold(board, process, ticks_off=1)
    board.publish(0, PROOF, LOST, renewals=1)
    now = boot_seconds()
    stopper.look(now)
    stopper.look(now + 100)
    assert is_running(process)


def test_the_next_task_of_a_process_gets_a_grace_of_its_own(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper
) -> None:
    hold(board, process)
    board.publish(0, PROOF, LOST, renewals=1)
    now = boot_seconds()
    stopper.look(now)
    hold(board, process, proof=LATER)
    board.publish(0, LATER, LOST, renewals=1)
    stopper.look(now + GRACE_S)
    assert is_running(process)
    stopper.look(now + 2 * GRACE_S)
    demand_killed(process)


def test_a_task_that_stopped_in_time_is_forgotten(
    board: Board, process: subprocess.Popen[bytes], stopper: Stopper
) -> None:
    hold(board, process)
    board.publish(0, PROOF, LOST, renewals=1)
    now = boot_seconds()
    stopper.look(now)
    board.release(0)
    stopper.look(now + GRACE_S)
    hold(board, process)
    stopper.look(now + GRACE_S)
    assert is_running(process)


def test_a_process_that_ends_by_itself_at_that_moment_stops_nothing(
    board: Board,
    process: subprocess.Popen[bytes],
    stopper: Stopper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(board, process)
    ticks = start_ticks_of(process.pid)
    board.publish(0, PROOF, LOST, renewals=1)
    process.kill()
    process.wait(DEADLINE_SECONDS)
    monkeypatch.setattr(stop, "start_ticks_of", lambda _pid: ticks)
    now = boot_seconds()
    stopper.look(now)
    stopper.look(now + GRACE_S)


def test_the_thread_survives_a_bad_look_and_ends_when_told(
    board: Board, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Proof] = []

    def grace_of(proof: Proof) -> timedelta:
        looks.append(proof)
        if len(looks) == 1:
            raise RuntimeError("a bad look")
        return timedelta(0)

    monkeypatch.setattr(stop, "TICK_SECONDS", 0.01)
    hold(board, process, proof=Proof(UUID(int=1), UUID(int=2), 1, 7))
    board.publish(0, PROOF, LOST, renewals=1)
    watching = Stopper(board, grace_of=grace_of)
    watching.start()
    demand_killed(process)
    watching.finish()
    assert not watching.is_alive()
    assert len(looks) >= 2
