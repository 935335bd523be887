"""The heartbeat buries the dead, is seen, and survives what goes wrong (SPEC D7, case C5)."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from leaseq.models import Attempt, Job, WorkerNode
from leaseq.services import attempts, workers
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.vocabulary import AttemptState, Certainty, EndReason
from leaseq.worker import seats
from leaseq.worker.board import Board
from leaseq.worker.heartbeat import Heartbeat
from tests.services.photograph import photograph
from tests.services.stages import claim, queue_up
from tests.worker.beats import heart, hold, proof_of, slot_lease, told
from tests.worker.conftest import DEADLINE_SECONDS, until

pytestmark = pytest.mark.django_db


# -- the dead ----------------------------------------------------------------------------------


def test_a_dead_pool_process_is_buried_once_and_its_successor_is_left_alone(
    board: Board,
    admit: Callable[..., Job],
    worker: Registered,
    process: subprocess.Popen[bytes],
) -> None:
    first, second = admit(), admit()
    queue_up()
    doomed = claim(first, worker)
    attempts.begin(doomed.proof)
    hold(board, doomed, pid=process.pid)
    beating = heart(board, worker)
    beating.beat()
    assert Attempt.objects.get(pk=doomed.proof.attempt_id).state == AttemptState.OPEN

    process.kill()
    process.wait(DEADLINE_SECONDS)
    beating.beat()
    buried = Attempt.objects.get(pk=doomed.proof.attempt_id)
    assert (buried.state, buried.reason) == (AttemptState.LOST, EndReason.WORKER_LOST)
    after = photograph()
    beating.beat()
    assert photograph() == after

    heir = claim(second, worker)
    guard = hold(board, heir, age=11)
    beating.beat()
    assert Attempt.objects.get(pk=heir.proof.attempt_id).state == AttemptState.OPEN
    assert (told(board).proof, told(board).renewals) == (proof_of(heir), 1)
    guard.check()


@pytest.mark.usefixtures("board", "renewals")
def test_a_burial_that_fails_costs_no_other_lease_and_is_tried_again(
    admit: Callable[..., Job],
    worker: Registered,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admit(), admit()
    doomed, living = (claim(job, worker, slot=at) for at, job in enumerate(queue_up()))
    real = attempts.lose_of_worker

    def fail(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("cannot be buried")

    monkeypatch.setattr(attempts, "lose_of_worker", fail)
    board = seats.board()
    hold(board, doomed, index=0, pid=process.pid)
    hold(board, living, index=1, age=11)
    process.kill()
    process.wait(DEADLINE_SECONDS)
    beating = heart(board, worker)

    beating.beat()
    assert "cannot be buried" in caplog.text
    assert told(board, 1).renewals == 1

    monkeypatch.setattr(attempts, "lose_of_worker", real)
    beating.beat()
    assert Attempt.objects.get(pk=doomed.proof.attempt_id).state == AttemptState.LOST


def test_a_pool_of_threads_has_no_processes_to_bury(
    board: Board, begun: Claimed, worker: Registered, process: subprocess.Popen[bytes]
) -> None:
    hold(board, begun, pid=process.pid)
    process.kill()
    process.wait(DEADLINE_SECONDS)
    before = photograph("leaseq_attempt")
    heart(board, worker, watches_processes=False).beat()
    assert photograph("leaseq_attempt") == before


# -- the worker itself -------------------------------------------------------------------------


def test_a_worker_is_seen_while_its_heart_beats(
    board: Board, worker: Registered, later: Callable[[float], None]
) -> None:
    beating = heart(board, worker)
    first = WorkerNode.objects.get().seen_at
    beating.beat()
    second = WorkerNode.objects.get().seen_at
    beating.beat()
    assert first < second == WorkerNode.objects.get().seen_at
    later(6)
    beating.beat()
    assert WorkerNode.objects.get().seen_at > second


def test_a_worker_that_was_declared_over_is_told_to_restart_and_goes_on(
    board: Board,
    begun: Claimed,
    worker: Registered,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers.declare_dead(worker.worker_id)
    hold(board, begun, age=11)
    heart(board, worker).beat()
    assert "restart this worker" in caplog.text
    assert told(board).renewals == 1


@pytest.mark.usefixtures("board", "renewals")
def test_whatever_goes_wrong_the_next_beat_comes(
    beating: Heartbeat,
    begun: Claimed,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = seats.board()
    hold(board, begun, age=11)

    def unreadable() -> list[Any]:
        raise RuntimeError("the board is unreadable")

    monkeypatch.setattr(board, "holding", unreadable)
    beating.beat()
    assert "the board is unreadable" in caplog.text
    assert slot_lease(begun).renewal_count == 0
    monkeypatch.delattr(board, "holding")
    beating.beat()
    assert slot_lease(begun).renewal_count == 1


@pytest.mark.django_db(transaction=True)
def test_the_thread_beats_on_a_connection_of_its_own_until_it_is_told_to_finish(
    board: Board, begun: Claimed, worker: Registered
) -> None:
    hold(board, begun, age=11)
    beating = heart(board, worker)
    beating.start()
    until(lambda: slot_lease(begun).renewal_count == 1, what="a renewal by the thread")
    beating.finish()
    assert not beating.is_alive()
    assert told(board).belief.certainty is Certainty.CERTAIN
