import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leaseq.db import clock
from leaseq.errors import TransitionRefused
from leaseq.models import (
    Attempt,
    Hold,
    Job,
    JobEvent,
    Lease,
    PermitPool,
    ServingPolicy,
    UsageRecord,
)
from leaseq.rules.ownership import Fence
from leaseq.services import attempts, cancellation, dispatch
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Target
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    TransitionRefusal,
)
from tests.conftest import register_worker
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Asserts = Callable[[int], Any]
SECOND = timedelta(seconds=1)


def the_attempt() -> Attempt:
    return Attempt.objects.get()


def test_beginning_records_acceptance_and_start_as_two_facts(claimed: Claimed) -> None:
    attempts.begin(claimed.proof)

    attempt = the_attempt()
    assert Job.objects.get().state == JobState.RUNNING
    assert attempt.accepted_at == attempt.started_at is not None
    kinds = JobEvent.objects.order_by("version").values_list("kind", flat=True)
    assert list(kinds)[-2:] == ["accepted", "started"]
    assert not attempt.possibly_sent


def test_nothing_begins_twice(begun: Claimed) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        attempts.begin(begun.proof)
    assert refused.value.reason is TransitionRefusal.NOT_A_LEGAL_MOVE
    assert photograph() == before


def test_nothing_begins_after_a_cancel_request(claimed: Claimed) -> None:
    cancellation.ask(claimed.job_id, actor="user:test", reason="no need")
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        attempts.begin(claimed.proof)

    assert refused.value.reason is TransitionRefusal.CANCEL_ASKED
    assert photograph() == before
    attempts.fail(claimed.proof, cause=EndReason.CANCELLED, error="")
    assert Job.objects.get().state == JobState.CANCELLED


def test_progress_is_noted_with_its_time_and_no_event(begun: Claimed) -> None:
    events = JobEvent.objects.count()
    attempts.progress(begun.proof, report={"done": 3, "usage": {"second": 1.5}})

    attempt = the_attempt()
    assert attempt.progress == {"done": 3, "usage": {"second": 1.5}}
    assert attempt.progress_at is not None
    assert JobEvent.objects.count() == events


@pytest.mark.parametrize(
    "report",
    [
        pytest.param({"x": math.nan}, id="not a number"),
        pytest.param({"x": "y" * 5000}, id="too large"),
        pytest.param({"x": [[[[[1]]]]]}, id="too deep"),
        pytest.param({"usage": 5}, id="usage that is no mapping"),
        pytest.param({"usage": {"second": "much"}}, id="usage that is no number"),
        pytest.param({"usage": {"second": -1}}, id="negative usage"),
        pytest.param({"usage": {"second": True}}, id="usage that is a bool"),
        pytest.param({"usage": {"second": 10**14}}, id="endless usage"),
        pytest.param({"usage": {"u" * 51: 1}}, id="a unit too long"),
        pytest.param({"usage": {"": 1}}, id="a unit without a name"),
    ],
)
def test_a_report_that_could_not_be_booked_is_refused_when_it_is_made(
    begun: Claimed, report: dict[str, Any]
) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        attempts.progress(begun.proof, report=report)
    assert refused.value.reason is TransitionRefusal.BAD_REPORT
    assert photograph() == before


def test_only_a_running_job_makes_progress(claimed: Claimed) -> None:
    with pytest.raises(TransitionRefused) as refused:
        attempts.progress(claimed.proof, report={})
    assert refused.value.reason is TransitionRefusal.NOT_A_LEGAL_MOVE


def test_completion_keeps_the_result_and_gives_everything_back_at_once(
    permit: PermitPool, begun: Claimed
) -> None:
    assert attempts.complete(begun.proof, result={"answer": [42]}) is JobState.COMPLETED

    job, attempt = Job.objects.get(), the_attempt()
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.COMPLETED,
        EndReason.COMPLETED,
        False,
    )
    assert (attempt.state, attempt.result) == (AttemptState.COMPLETED, {"answer": [42]})
    assert job.settle_at == job.ended_at == attempt.ended_at
    ended = Lease.objects.exclude(status=LeaseStatus.TRANSFERRED)
    assert {(one.status, one.end_reason) for one in ended} == {
        (LeaseStatus.RELEASED, EndReason.COMPLETED)
    }
    assert Hold.objects.get().state == "held"


def test_nothing_completes_twice(begun: Claimed) -> None:
    attempts.complete(begun.proof, result=1)
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        attempts.complete(begun.proof, result=2)
    assert refused.value.reason is TransitionRefusal.STALE_OWNER
    assert photograph() == before


def test_what_never_began_does_not_complete(claimed: Claimed) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        attempts.complete(claimed.proof, result=1)
    assert refused.value.reason is TransitionRefusal.NOT_A_LEGAL_MOVE
    assert photograph() == before


@pytest.mark.parametrize(
    ("keep", "job_state", "attempt_state"),
    [
        pytest.param(
            False, JobState.CANCELLED, AttemptState.COMPLETED_AFTER_CANCEL, id="by default"
        ),
        pytest.param(True, JobState.COMPLETED, AttemptState.COMPLETED, id="the policy keeps it"),
    ],
)
def test_a_result_after_a_cancel_request_is_kept_for_audit(
    begun: Claimed, keep: bool, job_state: JobState, attempt_state: AttemptState
) -> None:
    ServingPolicy.objects.update(keep_result=keep)
    cancellation.ask(begun.job_id, actor="user:test", reason="no need")

    assert attempts.complete(begun.proof, result=7) is job_state

    attempt = the_attempt()
    assert (attempt.state, attempt.result) == (attempt_state, 7)
    assert Job.objects.get().state == job_state


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        pytest.param({1}, EndReason.RESULT_NOT_JSON, id="a set"),
        pytest.param(math.inf, EndReason.RESULT_NOT_JSON, id="infinity"),
        pytest.param("a\0b", EndReason.RESULT_NOT_JSON, id="NUL"),
        pytest.param("x" * 1_048_600, EndReason.RESULT_TOO_LARGE, id="too large"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_the_job_with_the_reason(
    begun: Claimed, result: object, reason: EndReason
) -> None:
    assert attempts.complete(begun.proof, result=result) is JobState.FAILED
    attempt = the_attempt()
    assert (Job.objects.get().reason, attempt.reason, attempt.result) == (reason, reason, None)
    assert "cannot be stored" in attempt.error


def test_an_error_of_the_task_ends_the_job(begun: Claimed) -> None:
    state = attempts.fail(begun.proof, cause=EndReason.TASK_ERROR, error="ValueError: no")

    job, attempt = Job.objects.get(), the_attempt()
    assert state is JobState.FAILED
    assert (job.reason, job.dead_letter) == (EndReason.TASK_ERROR, False)
    assert (attempt.state, attempt.error) == (AttemptState.FAILED, "ValueError: no")
    assert Lease.objects.get().status == LeaseStatus.RELEASED


def test_a_task_that_asks_to_be_tried_again_waits_its_turn(begun: Claimed) -> None:
    assert attempts.fail(begun.proof, cause=EndReason.TASK_RETRY, error="") is JobState.ADMITTED
    job = Job.objects.get()
    assert timedelta(seconds=0.5) <= job.not_before - job.changed_at <= SECOND
    assert job.attempts.count() == 2


def test_the_last_allowed_attempt_gives_its_lease_back_and_tells_its_own_cause(
    begun: Claimed,
) -> None:
    ServingPolicy.objects.update(attempts_max=1)

    attempts.fail(begun.proof, cause=EndReason.TASK_RETRY, error="again")

    job, attempt = Job.objects.get(), the_attempt()
    assert (job.reason, job.dead_letter) == (EndReason.MAX_ATTEMPTS, True)
    assert (attempt.state, attempt.reason) == (AttemptState.FAILED, EndReason.TASK_RETRY)
    assert Lease.objects.get().status == LeaseStatus.RELEASED


def test_any_text_of_an_error_can_be_recorded(begun: Claimed) -> None:
    attempts.fail(begun.proof, cause=EndReason.TASK_ERROR, error="a\0b\ud800" + "c" * 5000)
    assert the_attempt().error.startswith("a\N{REPLACEMENT CHARACTER}b?cc")
    assert len(the_attempt().error) == attempts.ERROR_LENGTH_MAX


def test_a_reason_that_is_no_loss_fails_nothing(begun: Claimed) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        attempts.fail(begun.proof, cause=EndReason.USAGE_SETTLED, error="")
    assert refused.value.reason is TransitionRefusal.NOT_A_LEGAL_MOVE
    assert photograph() == before


def test_the_witness_of_a_death_ends_the_attempt_before_its_lease_does(
    begun: Claimed, worker: Registered
) -> None:
    attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )

    first = Attempt.objects.get(number=1)
    assert (first.state, first.reason) == (AttemptState.LOST, EndReason.WORKER_LOST)
    assert Lease.objects.get().status == LeaseStatus.REVOKED
    again = attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )
    assert again is None
    assert Attempt.objects.count() == 2


def test_nobody_bears_witness_for_another_worker(begun: Claimed) -> None:
    other = register_worker("gpu2@here", slots=1)
    before = photograph()
    lost = attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=other.worker_id, cause=EndReason.WORKER_LOST
    )
    assert lost is None
    assert photograph() == before


def test_usage_seen_so_far_is_booked_when_the_holder_is_lost(
    claimed: Claimed, worker: Registered, prices: Any
) -> None:
    target = Target(provider="private", endpoint="http://m", model="", ends_with_connection=True)
    intent = dispatch.record_intent(claimed.proof, target=target, body=b"{}")
    dispatch.record_accepted(intent, provider_request_id=None)
    dispatch.record_started(intent)
    attempts.progress(claimed.proof, report={"usage": {"prompt_token": 100, "joule": "2.5"}})

    attempts.lose_of_worker(
        claimed.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )

    lines = {one.unit: (one.quantity, one.cost) for one in UsageRecord.objects.all()}
    assert {unit: str(cost) for unit, (_, cost) in lines.items()} == {
        "prompt_token": "0.000100000",
        "joule": "None",
    }


def test_a_clock_that_was_stepped_back_is_clamped_and_tells_no_story_backwards(
    begun: Claimed, worker: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROMISES L7: the authority's clock goes back one hour between two acts."""
    real = clock.read
    monkeypatch.setattr(clock, "read", lambda: real() - timedelta(hours=1))

    attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )

    instants = list(JobEvent.objects.order_by("version").values_list("at", flat=True))
    assert instants == sorted(instants)
    assert Attempt.objects.filter(state=AttemptState.LOST).count() == 1


def test_the_verbs_of_a_run_cost_a_known_number_of_statements(
    permit: PermitPool, queued_job: Job, worker: Registered, django_assert_num_queries: Asserts
) -> None:
    attempt_id, slot_id = the_attempt().pk, worker.slot_ids[0]
    # With one permit; two of every number are the savepoint's.
    with django_assert_num_queries(17):
        claimed = attempts.claim(attempt_id, worker_id=worker.worker_id, slot_id=slot_id)
    with django_assert_num_queries(10):
        attempts.begin(claimed.proof)
    with django_assert_num_queries(11):
        attempts.complete(claimed.proof, result=1)


def stale(claimed: Claimed) -> Claimed:
    fence = claimed.proof.fence
    older = replace(claimed.proof, fence=Fence(epoch=fence.epoch, counter=fence.counter - 1))
    return replace(claimed, proof=older)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda one: attempts.progress(one.proof, report={}), id="progress"),
        pytest.param(lambda one: attempts.complete(one.proof, result=1), id="complete"),
        pytest.param(
            lambda one: attempts.fail(one.proof, cause=EndReason.TASK_ERROR, error="x"), id="fail"
        ),
    ],
)
def test_a_token_of_the_past_acts_in_nothing(
    begun: Claimed, act: Callable[[Claimed], object]
) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        act(stale(begun))
    assert refused.value.reason is TransitionRefusal.STALE_OWNER
    assert photograph() == before
