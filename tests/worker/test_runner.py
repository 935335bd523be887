"""One delivery: claimed, run, and ended with what came of it (SPEC D4, D6)."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from celery.app.trace import trace_task_ret
from celery.exceptions import Ignore
from django.db import OperationalError
from pytest_django import Settings

from leaseq.api import leased_task
from leaseq.errors import (
    CancelAsked,
    LeaseqError,
    Misconfigured,
    OwnershipLost,
    OwnershipUncertain,
    ProviderError,
    TransitionRefused,
)
from leaseq.models import Attempt, Job, UsageRecord, WorkerNode
from leaseq.models import Lease as LeaseRow
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief
from leaseq.services import attempts, cancellation
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    Certainty,
    EndReason,
    JobState,
    LeaseStatus,
    TransitionRefusal,
)
from leaseq.worker import runner, seats
from leaseq.worker.board import BOARD_VARIABLE
from leaseq.worker.handle import Lease
from leaseq.worker.runner import BadResult, RetryAsked
from leaseq.worker.seats import Seat
from tests.services.photograph import photograph
from tests.services.stages import queue_up

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("seat")]
NAME = "tests.nothing"


@dataclass
class Task:
    """What the runner needs of a leased task; keeps what it was called with."""

    act: Callable[..., Any] = lambda *_args, **_kwargs: "done"
    name: str = NAME
    provider: str = "local"
    takes_lease: bool = True
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.act(*args, **kwargs)


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*_args: Any) -> Any:
        raise error

    return act


def the_attempt(number: int = 1) -> Attempt:
    return Attempt.objects.get(number=number)


def deliver(act: Callable[..., Any], **options: Any) -> Any:
    return runner.deliver(Task(act, **options), the_attempt().pk)


# -- claimed, run, recorded --------------------------------------------------------------------


def test_the_result_is_recorded_as_the_jobs(admit: Callable[..., Job], worker: Registered) -> None:
    job = admit(args=[1, "two"], kwargs={"three": 3})
    queue_up()
    task = Task(lambda *_args, **_kwargs: {"text": "done"})

    assert runner.deliver(task, the_attempt().pk) == {"text": "done"}

    ((lease, *args), kwargs) = task.calls[0]
    assert isinstance(lease, Lease)
    assert (args, kwargs) == ([1, "two"], {"three": 3})
    attempt = the_attempt()
    assert (attempt.state, attempt.result) == (AttemptState.COMPLETED, {"text": "done"})
    assert attempt.worker_id == worker.worker_id
    assert Job.objects.get().state == JobState.COMPLETED
    states = [event.to_state for event in job.events.order_by("version")]
    assert states[-4:] == ["dispatching", "provider_accepted", "running", "completed"]
    assert not LeaseRow.objects.filter(status=LeaseStatus.ACTIVE).exists()
    assert seats.board().holding() == []


def test_a_task_without_the_handle_gets_its_arguments_alone(admit: Callable[..., Job]) -> None:
    admit(args=[1])
    queue_up()
    task = Task(takes_lease=False)
    runner.deliver(task, the_attempt().pk)
    assert task.calls == [((1,), {})]


def test_what_runs_stands_on_the_board_and_its_job_is_running(queued_job: Job) -> None:
    def look(lease: Lease) -> bool:
        (held,) = seats.board().holding()
        assert held.proof.attempt_id == lease.attempt_id == the_attempt().pk
        assert (lease.job_id, lease.attempt_number) == (queued_job.pk, 1)
        assert (lease.lost, lease.certainty) == (False, Certainty.CERTAIN)
        lease.guard()
        return Job.objects.get().state == JobState.RUNNING

    assert deliver(look) is True


def test_a_task_of_a_provider_that_asks_nothing_of_it_was_the_compute_itself(
    admit: Callable[..., Job],
) -> None:
    job = admit(provider="private")
    queue_up()
    seen = []

    assert deliver(lambda _lease: seen.append(Job.objects.get().state), provider="private") is None

    assert seen == [JobState.DISPATCHING]
    assert [one.to_state for one in job.events.order_by("version")][-3:] == [
        "provider_accepted", "running", "completed",
    ]  # fmt: skip


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


# -- how a task may end ------------------------------------------------------------------------


def asked_to_cancel(lease: Lease) -> None:
    cancellation.ask(lease.job_id, actor="user:test", reason="no longer needed")
    raise CancelAsked("stop")


@pytest.mark.parametrize(
    ("act", "comes_out", "attempt", "job_state"),
    [
        pytest.param(
            asked_to_cancel, Ignore,
            (AttemptState.CANCELLED, EndReason.CANCELLED), JobState.CANCELLED,
            id="a cancellation was asked for",
        ),
        pytest.param(
            raising(OwnershipLost("gone")), Ignore,
            (AttemptState.LOST, EndReason.HOLDER_STOPPED), JobState.ADMITTED,
            id="it stopped because the lease is lost",
        ),
        pytest.param(
            raising(OwnershipUncertain("who knows")), Ignore,
            (AttemptState.LOST, EndReason.HOLDER_STOPPED), JobState.ADMITTED,
            id="it stopped because nobody knows",
        ),
        pytest.param(
            raising(RetryAsked("again")), Ignore,
            (AttemptState.FAILED, EndReason.TASK_RETRY), JobState.ADMITTED,
            id="it asks for a retry",
        ),
        pytest.param(
            raising(ProviderError("no", outcome="known_failed")), ProviderError,
            (AttemptState.REJECTED, EndReason.PROVIDER_REJECTED), JobState.FAILED,
            id="the provider refused",
        ),
        pytest.param(
            raising(ProviderError("?", outcome="unknown")), ProviderError,
            (AttemptState.LOST, EndReason.PROVIDER_UNKNOWN), JobState.ADMITTED,
            id="the provider's answer is unknown",
        ),
        pytest.param(
            raising(ValueError("no")), ValueError,
            (AttemptState.FAILED, EndReason.TASK_ERROR), JobState.FAILED,
            id="it raises",
        ),
        pytest.param(
            raising(Ignore()), Ignore,
            (AttemptState.FAILED, EndReason.TASK_ERROR), JobState.FAILED,
            id="it raises what Celery ignores",
        ),
        pytest.param(
            raising(SystemExit(3)), SystemExit,
            (AttemptState.LOST, EndReason.HOLDER_STOPPED), JobState.ADMITTED,
            id="its process exits",
        ),
    ],
)  # fmt: skip
def test_each_end_of_a_task_is_one_of_attempt_and_job(
    queued_job: Job,
    act: Callable[..., Any],
    comes_out: type[BaseException],
    attempt: tuple[AttemptState, EndReason],
    job_state: JobState,
) -> None:
    with pytest.raises(comes_out):
        deliver(act)
    ended = the_attempt()
    assert (ended.state, ended.reason, ended.result) == (*attempt, None)
    assert Job.objects.get().state == job_state
    assert Attempt.objects.count() == (2 if job_state == JobState.ADMITTED else 1)
    assert not LeaseRow.objects.filter(status=LeaseStatus.ACTIVE).exists()
    assert seats.board().holding() == []


def test_what_a_task_raises_is_kept_with_its_traceback(queued_job: Job) -> None:
    def act(_lease: Lease) -> None:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        deliver(act)
    error = the_attempt().error
    assert "ValueError: no such thing" in error
    assert "in act" in error


def test_a_retry_names_its_cause(queued_job: Job) -> None:
    def act(_lease: Lease) -> None:
        raise RetryAsked("again") from ValueError("not yet")

    with pytest.raises(Ignore):
        deliver(act)
    assert the_attempt().error.strip() == "ValueError: not yet"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({1, 2}, EndReason.RESULT_NOT_JSON),
        (float("nan"), EndReason.RESULT_NOT_JSON),
        ("x" * 101, EndReason.RESULT_TOO_LARGE),
    ],
    ids=["a set", "not a number", "too large"],
)
def test_a_result_that_cannot_be_stored_fails_the_job_and_says_why(
    queued_job: Job, settings: Settings, result: object, reason: EndReason
) -> None:
    settings.LEASEQ = settings.LEASEQ | {"RESULT_BYTES_MAX": 100}
    with pytest.raises(BadResult, match="return its name"):
        deliver(lambda _lease: result)
    attempt = the_attempt()
    assert (attempt.state, attempt.reason, attempt.result) == (AttemptState.FAILED, reason, None)
    assert attempt.error.startswith("the result cannot be stored:")
    assert Job.objects.get().state == JobState.FAILED


# -- who lost the lease records nothing --------------------------------------------------------


def taken_away(lease: Lease) -> None:
    worker = WorkerNode.objects.get()
    assert attempts.lose_of_worker(
        lease.attempt_id, worker_id=worker.pk, cause=EndReason.WORKER_LOST
    )


def test_a_late_result_of_a_lost_attempt_is_not_recorded(queued_job: Job) -> None:
    before: dict[str, str] = {}

    def act(lease: Lease) -> str:
        taken_away(lease)
        before.update(photograph())
        return "late"

    with pytest.raises(Ignore):
        deliver(act)
    assert photograph() == before
    assert (the_attempt().state, the_attempt().result) == (AttemptState.LOST, None)
    assert (the_attempt(2).state, Job.objects.get().state) == (AttemptState.OPEN, JobState.ADMITTED)


def test_a_late_error_of_a_lost_attempt_is_not_recorded(queued_job: Job) -> None:
    before: dict[str, str] = {}

    def act(lease: Lease) -> str:
        taken_away(lease)
        before.update(photograph())
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        deliver(act)
    assert photograph() == before


def test_an_attempt_cancelled_between_claim_and_begin_never_runs(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attempts.claim

    def claim_and_cancel(*args: Any, **kwargs: Any) -> attempts.Claimed:
        claimed = real(*args, **kwargs)
        cancellation.ask(claimed.job_id, actor="user:test", reason="")
        return claimed

    monkeypatch.setattr(attempts, "claim", claim_and_cancel)
    task = Task()
    with pytest.raises(Ignore):
        runner.deliver(task, the_attempt().pk)
    assert task.calls == []
    assert (the_attempt().state, Job.objects.get().state) == (
        AttemptState.CANCELLED,
        JobState.CANCELLED,
    )


# -- a database that does not answer -----------------------------------------------------------


class Flaky:
    """A verb that fails so many times, before its work or after it: the answer is lost then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, times: int = 1) -> None:
        self._real = getattr(attempts, name)
        self.left = times
        self.calls = 0
        self.works_first = False
        self.closed = 0
        monkeypatch.setattr(attempts, name, self)
        monkeypatch.setattr(runner, "PAUSE_SECONDS", 0)
        # The connection of the test works, and holds what the test has made so far.
        monkeypatch.setattr(runner, "connection", lambda: self)

    def close(self) -> None:
        self.closed += 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            if self.works_first:
                self._real(*args, **kwargs)
            raise OperationalError("server closed the connection unexpectedly")
        return self._real(*args, **kwargs)


@pytest.mark.parametrize("works_first", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize("verb", ["begin", "complete"])
def test_an_outage_of_the_database_costs_no_attempt(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, verb: str, works_first: bool
) -> None:
    flaky = Flaky(monkeypatch, verb)
    flaky.works_first = works_first
    assert deliver(lambda _lease: "done") == "done"
    assert (flaky.calls, flaky.closed) == (2, 1)
    assert (the_attempt().state, the_attempt().result) == (AttemptState.COMPLETED, "done")
    kinds = [event.kind for event in queued_job.events.all()]
    assert [kinds.count(kind) for kind in ("accepted", "started", "completed")] == [1, 1, 1]
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize("works_first", [False, True], ids=["not done", "done, answer lost"])
def test_an_outage_while_a_failure_is_recorded_changes_nothing_of_it(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, works_first: bool
) -> None:
    flaky = Flaky(monkeypatch, "fail")
    flaky.works_first = works_first
    with pytest.raises(ValueError, match="no"):
        deliver(raising(ValueError("no")))
    assert (the_attempt().state, the_attempt().reason) == (
        AttemptState.FAILED,
        EndReason.TASK_ERROR,
    )
    assert Attempt.objects.count() == 1


def test_progress_waits_for_the_database(queued_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    Flaky(monkeypatch, "progress")
    deliver(lambda lease: lease.progress(step=3))
    assert the_attempt().progress == {"step": 3}


def test_an_outage_longer_than_the_lease_ends_with_a_witness(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Flaky(monkeypatch, "complete", times=1000)
    witness = Flaky(monkeypatch, "lose_of_worker", times=2)

    def act(_lease: Lease) -> str:
        board = seats.board()
        (held,) = board.holding()
        gone = Belief(deadline=Deadline(boot_seconds()), doubt_at=0.0, certainty=Certainty.LOST)
        board.publish(held.index, held.proof, gone, renewals=0)
        return "late"

    with pytest.raises(Ignore):
        deliver(act)
    assert (complete.calls, witness.calls) == (1, 3)
    assert (the_attempt().state, the_attempt().reason, the_attempt().result) == (
        AttemptState.LOST,
        EndReason.HOLDER_STOPPED,
        None,
    )


def test_a_witness_whom_nobody_hears_gives_up(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Flaky(monkeypatch, "lose_of_worker", times=1000)
    monkeypatch.setattr(runner, "WITNESS_SECONDS", 0)
    with pytest.raises(Ignore):
        deliver(raising(OwnershipLost("gone")))
    assert witness.calls == 1
    assert "nobody heard" in caplog.text
    assert the_attempt().state == AttemptState.OPEN


# -- the handle --------------------------------------------------------------------------------


def test_a_task_meters_itself_through_its_handle(queued_job: Job) -> None:
    def act(lease: Lease) -> None:
        lease.record_usage("word", 3)
        lease.record_usage("word", 2)
        with lease.fenced():
            UsageRecord.objects.update(model="by the task")

    deliver(act)
    line = UsageRecord.objects.get()
    assert (line.quantity, line.unit, line.model) == (5, "word", "by the task")


@pytest.mark.parametrize("quantity", [-1, 0.1, "many", float("nan"), True])
def test_a_bad_quantity_is_refused_with_its_reason(queued_job: Job, quantity: Any) -> None:
    def act(lease: Lease) -> None:
        with pytest.raises(TransitionRefused) as refused:
            lease.record_usage("word", quantity)
        assert refused.value.reason is TransitionRefusal.BAD_REPORT

    deliver(act)
    assert not UsageRecord.objects.exists()


def test_a_handle_whose_attempt_was_lost_writes_nothing(queued_job: Job) -> None:
    def act(lease: Lease) -> None:
        taken_away(lease)
        before = photograph()
        for write in (
            lambda: lease.progress(step=1),
            lambda: lease.record_usage("word", 1),
            lambda: lease.fenced().__enter__(),
            lambda: lease.infer({}),
        ):
            with pytest.raises(LeaseqError):
                write()
        assert photograph() == before

    with pytest.raises(Ignore):
        deliver(act)


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
