"""A message is a hint: one that may not run is dropped, whatever it says (SPEC D6, PROMISES S8)."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from celery.app.trace import trace_task_ret
from celery.exceptions import Ignore

from leaseq.api import leased_task
from leaseq.errors import (
    Misconfigured,
)
from leaseq.models import Job
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
)
from leaseq.worker import runner, seats
from leaseq.worker.board import BOARD_VARIABLE
from leaseq.worker.handle import Lease
from leaseq.worker.seats import Seat
from tests.services.photograph import photograph
from tests.services.stages import queue_up
from tests.worker.deliveries import Task, deliver, the_attempt

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("seat")]


# -- messages that may not run -----------------------------------------------------------------


def test_a_message_that_comes_twice_is_dropped(queued_job: Job) -> None:
    deliver(lambda _lease: "done")
    before = photograph()
    again = Task()
    with pytest.raises(Ignore):
        runner.deliver(again, the_attempt().pk)
    assert (photograph(), again.calls) == (before, [])


def test_a_message_that_comes_twice_while_the_first_runs_is_dropped(queued_job: Job) -> None:
    again = Task()

    def act(_lease: Lease) -> str:
        before = photograph()
        with pytest.raises(Ignore):
            runner.deliver(again, the_attempt().pk)
        assert photograph() == before
        return "done"

    assert deliver(act) == "done"
    assert again.calls == []
    assert the_attempt().result == "done"


@pytest.mark.parametrize("known", [True, False], ids=["of another task", "of no attempt"])
def test_a_forged_message_is_dropped(queued_job: Job, known: bool) -> None:
    before = photograph()
    task = Task(name="tests.another")
    with pytest.raises(Ignore):
        runner.deliver(task, the_attempt().pk if known else UUID(int=7))
    assert (photograph(), task.calls) == (before, [])


def test_more_tasks_than_slots_are_refused_and_the_message_comes_again(
    queued_job: Job, seat: Seat
) -> None:
    taken = [seats.take_index(seat) for _ in seat.slot_ids]
    before = photograph()
    with pytest.raises(Misconfigured, match="than this worker has slots"):
        deliver(lambda _lease: "done")
    assert photograph() == before
    for index in taken:
        seats.give_back(index)
    assert deliver(lambda _lease: "done") == "done"


def test_a_pool_that_grew_past_its_slots_is_told_so(
    queued_job: Job, seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class PoolProcess:
        index: int

    monkeypatch.setattr(seats, "current_process", lambda: PoolProcess(2))
    grown = Seat(seat.worker_id, seat.slot_ids, "prefork")
    with pytest.raises(Misconfigured, match="pool process 2 has no slot"):
        seats.take_index(grown)
    monkeypatch.setattr(seats, "current_process", lambda: PoolProcess(1))
    assert seats.take_index(grown) == 1


def test_outside_a_worker_a_delivery_says_what_is_missing(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = seats.board()
    monkeypatch.delenv(BOARD_VARIABLE)
    seats.board.cache_clear()
    with pytest.raises(Misconfigured, match=f"{BOARD_VARIABLE} is not set"):
        deliver(lambda _lease: "done")
    assert the_attempt().claimed_at is None
    monkeypatch.setenv(BOARD_VARIABLE, str(real.path))


# -- as Celery delivers it ---------------------------------------------------------------------

CALLS: list[Any] = []


@leased_task(queue="gpu", name="tests.runner.countdown")
def countdown(start: int) -> int:
    """Call itself like a function."""
    CALLS.append(start)
    return start if start == 0 else int(countdown(start - 1))


@leased_task(queue="gpu", name="tests.runner.again")
def again() -> None:
    """Ask for a retry."""
    raise again.retry(exc=ValueError("not yet"))


@leased_task(queue="gpu", name="tests.runner.autoretry", autoretry_for=(KeyError,))
def autoretry() -> None:
    """Raise what Celery shall retry by itself."""
    raise KeyError("not yet")


def arrive(name: str, attempt_id: object, *args: Any, **embed: Any) -> Any:
    """Let a message arrive in this process, as Celery's pool takes it."""
    body, request = json.dumps([args, {}, embed]), {"id": str(attempt_id), "task": name}
    return trace_task_ret(
        name, str(attempt_id), request, body, "application/json", "utf-8", app=current_app
    )


def test_a_task_may_call_itself_while_it_runs(admit: Callable[..., Job]) -> None:
    CALLS.clear()
    admit(task=countdown.name, args=[3])
    queue_up()
    arrive(countdown.name, the_attempt().pk)
    assert CALLS == [3, 2, 1, 0]
    assert (the_attempt().state, the_attempt().result) == (AttemptState.COMPLETED, 0)
    assert not runner.runs_here(the_attempt().pk)


@pytest.mark.parametrize("task", [again, autoretry], ids=["asked", "automatic"])
def test_a_retry_in_a_worker_is_a_new_attempt(admit: Callable[..., Job], task: Any) -> None:
    admit(task=task.name)
    queue_up()
    arrive(task.name, the_attempt().pk)
    assert (the_attempt().state, the_attempt().reason) == (
        AttemptState.FAILED,
        EndReason.TASK_RETRY,
    )
    assert "not yet" in the_attempt().error
    assert Job.objects.get().state == JobState.ADMITTED


@pytest.mark.parametrize(
    "embed",
    [{}, {"is_eager": True}, {"called_directly": True}, {"delivery_info": {"is_eager": True}}],
    ids=["plain", "as if eager", "as if called", "as if eager by its route"],
)
def test_a_message_that_no_attempt_stands_behind_runs_nothing(
    admit: Callable[..., Job], embed: dict[str, Any]
) -> None:
    CALLS.clear()
    admit(task=countdown.name, args=[3])
    before = photograph()
    arrive(countdown.name, UUID(int=7), 66, **embed)
    assert (CALLS, photograph()) == ([], before)


def test_a_message_says_nothing_but_which_attempt(admit: Callable[..., Job]) -> None:
    CALLS.clear()
    admit(task=countdown.name, args=[0])
    queue_up()
    arrive(countdown.name, the_attempt().pk, 66, is_eager=True)
    assert CALLS == [0]


def test_what_runs_in_one_thread_does_not_run_in_another(queued_job: Job) -> None:
    found: list[bool] = []

    def act(lease: Lease) -> None:
        def look() -> None:
            found.append(runner.runs_here(lease.attempt_id))

        look()
        other = threading.Thread(target=look)
        other.start()
        other.join()

    deliver(act)
    assert found == [True, False]
