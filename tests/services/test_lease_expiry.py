from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from leaseq.models import (
    Account,
    Attempt,
    Hold,
    Job,
    JobEvent,
    Lease,
    LedgerEntry,
    PermitPool,
    ProviderRequest,
    ServingPolicy,
    WorkerNode,
)
from leaseq.rules.renewal import Refused, Renewed
from leaseq.services import attempts, cancellation, dispatch, leases, workers
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Target
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    RenewalRefusal,
    RequestState,
)
from tests.conftest import register_worker
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Admit = Callable[..., Job]
SECOND = timedelta(seconds=1)
TARGET = Target(provider="private", endpoint="http://model", model="m", ends_with_connection=True)


def renew(claimed: Claimed, **asked: Any) -> leases.Answer:
    (answer,) = leases.renew_many([Renewal(proof=claimed.proof, **asked)])
    return answer


def refusal(answer: leases.Answer) -> RenewalRefusal:
    assert isinstance(answer.verdict, Refused)
    return answer.verdict.reason


def cancel_is_asked(claimed: Claimed) -> None:
    cancellation.ask(claimed.job_id, actor="user:test", reason="no need")


def worker_of_all() -> UUID:
    found: UUID = WorkerNode.objects.values_list("pk", flat=True).get()
    return found


def test_expiry_gives_slot_and_permit_back_and_opens_the_next_attempt_with_its_old_age(
    permit: PermitPool, begun: Claimed
) -> None:
    let_pass(30 * SECOND)
    before = Job.objects.get()

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    first, second = job.attempts.order_by("number")
    assert (first.state, first.reason) == (AttemptState.LOST, EndReason.LEASE_EXPIRED)
    assert (second.number, second.state) == (2, AttemptState.OPEN)
    assert (job.state, job.current_attempt_number) == (JobState.ADMITTED, 2)
    assert job.submitted_at == before.submitted_at
    assert job.not_before > job.changed_at
    assert job.waiting_since == job.not_before
    assert job.attempts_counted == 1
    ended = Lease.objects.exclude(status=LeaseStatus.TRANSFERRED)
    assert {one.status for one in ended} == {LeaseStatus.EXPIRED}
    assert all(one.ended_at == one.expires_at for one in ended)
    assert job.reserved_time_used >= 30 * SECOND


def test_expiry_run_ten_times_tells_of_one_loss_and_opens_one_attempt(begun: Claimed) -> None:
    """Case D6."""
    let_pass(30 * SECOND)

    verdicts = [leases.expire(begun.job_id, actor="control:expire") for _ in range(10)]

    assert [one is None for one in verdicts] == [False] + [True] * 9
    assert JobEvent.objects.filter(kind="readmitted").count() == 1
    assert Attempt.objects.count() == 2


def test_a_live_lease_is_not_expired(begun: Claimed) -> None:
    let_pass(29 * SECOND)
    before = photograph()
    assert leases.expire(begun.job_id, actor="control:expire") is None
    assert photograph() == before


def test_the_bound_that_ended_a_renewal_is_named_as_the_cause(begun: Claimed) -> None:
    ServingPolicy.objects.update(run_time_max=20 * SECOND)
    renew(begun)
    let_pass(20 * SECOND)

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_RUN_TIME,
        True,
    )


def test_a_lost_reservation_counts_against_queue_age_and_not_against_attempts(
    permit: PermitPool, queued_job: Job
) -> None:
    let_pass(30 * SECOND)

    leases.expire(queued_job.pk, actor="control:expire")

    job = Job.objects.get()
    first = job.attempts.get(number=1)
    assert (first.state, first.reason) == (
        AttemptState.RESERVATION_EXPIRED,
        EndReason.RESERVATION_EXPIRED,
    )
    assert job.attempts_counted == 0
    assert job.queue_time_used >= 30 * SECOND
    with pytest.raises(Exception, match="not_the_current_attempt"):
        attempts.claim(first.pk, worker_id=worker_of_all(), slot_id=1)


@pytest.fixture
def sent(claimed: Claimed) -> dispatch.Intent:
    """A request that may have been sent."""
    return dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")


def test_a_possibly_sent_attempt_waits_for_a_verdict_and_nothing_new_opens(
    sent: dispatch.Intent,
) -> None:
    let_pass(30 * SECOND)
    job = Job.objects.get()

    leases.expire(job.pk, actor="control:expire")

    attempt = Attempt.objects.get()
    job.refresh_from_db()
    assert (attempt.state, job.state) == (AttemptState.OUTCOME_UNKNOWN, JobState.DISPATCHING)
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 0
    assert ProviderRequest.objects.get().state == RequestState.UNKNOWN
    before = photograph()
    assert leases.expire(job.pk, actor="control:expire") is None
    assert leases.resolve_unknown(job.pk, actor="control:expire") is None
    assert photograph() == before


def test_the_death_of_its_holder_is_the_verdict_on_a_request_that_ends_with_its_connection(
    sent: dispatch.Intent, worker: Registered
) -> None:
    renew_once = leases.renew_many([Renewal(proof=sent.proof)])
    assert [type(one.verdict) for one in renew_once] == [Renewed]
    let_pass(30 * SECOND)
    job = Job.objects.get()
    leases.expire(job.pk, actor="control:expire")
    workers.declare_dead(worker.worker_id)

    leases.resolve_unknown(job.pk, actor="control:expire")

    job.refresh_from_db()
    first = job.attempts.get(number=1)
    assert (first.state, first.reason) == (AttemptState.LOST, EndReason.HOLDER_STOPPED)
    assert job.state == JobState.ADMITTED
    assert ProviderRequest.objects.get().state == RequestState.ABORTED
    # What was renewed while its end was not known counts against the job's budget (SPEC B7).
    assert job.renewals_used == 1
    assert first.possibly_sent


def test_when_monitoring_ends_the_job_ends_and_never_by_a_new_attempt(
    sent: dispatch.Intent, policy: ServingPolicy
) -> None:
    let_pass(30 * SECOND)
    job = Job.objects.get()
    leases.expire(job.pk, actor="control:expire")
    let_pass(policy.uncertain_max)

    leases.resolve_unknown(job.pk, actor="control:expire")

    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.FAILED, EndReason.MONITORING_ENDED)
    assert job.attempts.count() == 1


def test_a_silent_owner_of_a_cancelled_job_leads_to_cancelled(begun: Claimed) -> None:
    cancel_is_asked(begun)
    let_pass(30 * SECOND)

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    assert (job.state, job.attempts.get().state) == (JobState.CANCELLED, AttemptState.CANCELLED)
    assert job.attempts.count() == 1


def test_a_job_that_kills_its_worker_ends_after_as_many_starts_as_its_policy_allows(
    job: Job, worker: Registered, policy: ServingPolicy
) -> None:
    """Case B5: the attempt counts when capacity is granted, whatever kills it."""
    starts = 0
    for _ in range(policy.attempts_max + 2):
        for queued in stages.queue_up():
            stages.run(queued, worker)
            starts += 1
        let_pass(30 * SECOND)
        workers.seen(worker.worker_id)
        leases.expire(job.pk, actor="control:expire")
        let_pass(policy.retry_cap)

    job.refresh_from_db()
    assert starts == job.attempts_counted == 3
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_ATTEMPTS,
        True,
    )
    # The job says which bound it hit, each attempt what became of it.
    assert set(job.attempts.values_list("state", "reason")) == {
        (AttemptState.LOST, EndReason.LEASE_EXPIRED)
    }
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 0


def test_a_restarted_worker_of_the_same_name_keeps_no_orphan_alive(
    begun: Claimed, worker: Registered
) -> None:
    """Case B4: the new incarnation beats, and the old one's lease still ends on time."""
    again = register_worker("gpu1@here", slots=2, pid=4712)
    assert again.slot_ids == worker.slot_ids
    assert again.worker_id != worker.worker_id
    for _ in range(3):
        let_pass(10 * SECOND)
        workers.seen(again.worker_id)
    before = photograph()

    assert refusal(renew(begun)) is RenewalRefusal.LEASE_EXPIRED
    assert photograph() == before
    leases.expire(begun.job_id, actor="control:expire")
    let_pass(5 * SECOND)
    workers.seen(again.worker_id)
    (queued,) = stages.queue_up()
    assert stages.run(queued, again).attempt_number == 2


def test_neither_renewal_nor_expiry_moves_money(begun: Claimed) -> None:
    def amounts() -> list[Any]:
        held = Hold.objects.values_list("state", "amount", "held", "settled", "released")
        return [*held, LedgerEntry.objects.count(), Account.objects.get().held]

    before = amounts()
    renew(begun)
    let_pass(30 * SECOND)
    leases.expire(begun.job_id, actor="control:expire")
    assert amounts() == before
