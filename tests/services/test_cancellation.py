from uuid import UUID

import pytest

from leaseq.errors import TransitionRefused
from leaseq.models import Attempt, Job, Lease, OutboxMessage, PermitPool
from leaseq.services import attempts, cancellation, scheduling
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    PoolKind,
    TransitionRefusal,
)
from tests.conftest import RecordingPorts
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


def ask(job_id: UUID, reason: str = "no need") -> JobState:
    return cancellation.ask(job_id, actor="user:test", reason=reason)


def test_a_job_that_waits_is_cancelled_at_once(job: Job) -> None:
    assert ask(job.pk) is JobState.CANCELLED

    job.refresh_from_db()
    attempt = job.attempts.get()
    assert (job.reason, job.settle_at) == (EndReason.CANCELLED, job.ended_at)
    assert (attempt.state, attempt.reason) == (AttemptState.CANCELLED, EndReason.CANCELLED)
    told = job.events.order_by("version").values_list("kind", "actor", "reason")
    assert list(told)[1:] == [
        ("cancel_asked", "user:test", "no need"),
        ("cancelled", "user:test", "cancelled"),
    ]
    assert scheduling.reserve("gpu", limit=1).queued == []


def test_a_queued_job_gives_permit_and_message_back(job: Job) -> None:
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=1)
    scheduling.reserve("gpu", limit=1)

    assert ask(job.pk) is JobState.CANCELLED

    assert Lease.objects.get().status == LeaseStatus.RELEASED
    assert OutboxMessage.objects.count() == 0


@pytest.mark.parametrize("begins", [False, True], ids=["claimed", "begun"])
def test_whoever_runs_the_job_is_asked_to_stop_and_has_the_last_word(
    claimed: Claimed, begins: bool
) -> None:
    if begins:
        attempts.begin(claimed.proof)
    state = Job.objects.get().state

    assert ask(claimed.job_id) == state

    assert Job.objects.get().cancel_asked_at is not None
    assert Attempt.objects.get().state == AttemptState.OPEN
    assert attempts.fail(claimed.proof, cause=EndReason.CANCELLED, error="") is JobState.CANCELLED


def test_asking_twice_changes_nothing_more(begun: Claimed) -> None:
    ask(begun.job_id)
    before = photograph()
    assert ask(begun.job_id) is JobState.RUNNING
    assert photograph() == before


def test_asking_for_what_was_cancelled_gives_the_same_answer(job: Job) -> None:
    ask(job.pk)
    before = photograph()
    assert ask(job.pk) is JobState.CANCELLED
    assert photograph() == before


def test_a_cancelled_job_is_not_tried_again(begun: Claimed) -> None:
    ask(begun.job_id)
    state = attempts.fail(begun.proof, cause=EndReason.TASK_RETRY, error="")
    assert state is JobState.CANCELLED
    assert Attempt.objects.count() == 1


def test_what_has_completed_is_not_cancelled(begun: Claimed) -> None:
    attempts.complete(begun.proof, result=1)
    before = photograph()
    with pytest.raises(TransitionRefused, match="the job is completed") as refused:
        ask(begun.job_id)
    assert refused.value.reason is TransitionRefusal.JOB_TERMINAL
    assert photograph() == before


def test_an_unknown_job_is_not_cancelled(db: None) -> None:
    with pytest.raises(TransitionRefused) as refused:
        ask(UUID(int=1))
    assert refused.value.reason is TransitionRefusal.UNKNOWN_JOB


def test_any_reason_can_be_written_down(job: Job) -> None:
    ask(job.pk, reason="a\0b" + "c" * 500)
    told = job.events.get(kind="cancel_asked").reason
    assert told.startswith("a\N{REPLACEMENT CHARACTER}bccc")
    assert len(told) == 300


def test_the_end_rings_for_what_waits_and_for_the_money(
    job: Job, recording_ports: RecordingPorts, django_capture_on_commit_callbacks: object
) -> None:
    assert callable(django_capture_on_commit_callbacks)
    with django_capture_on_commit_callbacks(execute=True):
        ask(job.pk)
    assert recording_ports.rings == ["schedule", "settle"]
