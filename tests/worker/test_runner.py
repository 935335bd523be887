"""One delivery: claimed, run, and ended with what came of it (SPEC D4, D6)."""

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Ignore
from pytest_django import Settings

from leaseq.errors import (
    CancelAsked,
    LeaseqError,
    OwnershipLost,
    OwnershipUncertain,
    ProviderError,
    TransitionRefused,
)
from leaseq.models import Attempt, Job, UsageRecord
from leaseq.models import Lease as LeaseRow
from leaseq.services import cancellation
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
from leaseq.worker.handle import Lease
from leaseq.worker.runner import BadResult, RetryAsked
from tests.services.photograph import photograph
from tests.services.stages import queue_up
from tests.worker.deliveries import Task, deliver, raising, taken_away, the_attempt

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("seat")]


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
        return bool(Job.objects.get().state == JobState.RUNNING)

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


# -- the handle --------------------------------------------------------------------------------


def test_a_task_meters_itself_through_its_handle(queued_job: Job) -> None:
    def act(lease: Lease) -> None:
        lease.record_usage("word", 3)
        lease.record_usage("word", 2)
        with lease.fenced():
            UsageRecord.objects.update(model="by the task")

    deliver(act)
    line = UsageRecord.objects.get()
    assert (int(line.quantity), line.unit, line.model) == (5, "word", "by the task")


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
