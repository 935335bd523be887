from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from leaseq.errors import TransitionRefused
from leaseq.models import (
    Attempt,
    Hold,
    Job,
    JobEvent,
    Lease,
    OutboxMessage,
    PermitPool,
    ServingPolicy,
    Slot,
)
from leaseq.rules.ownership import Fence
from leaseq.rules.renewal import Renewed
from leaseq.services import attempts, cancellation, leases, workers
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    EndReason,
    JobState,
    LeaseStatus,
    ResourceType,
    TransitionRefusal,
)
from tests.conftest import register_worker
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Admit = Callable[..., Job]
SECOND = timedelta(seconds=1)


def the_attempt() -> Attempt:
    return Attempt.objects.get()


def test_a_claim_grants_the_slot_and_takes_the_permit_over_in_one_transaction(
    permit: PermitPool, queued_job: Job, worker: Registered
) -> None:
    let_pass(2 * SECOND)
    reserved = Lease.objects.get()

    claimed = stages.claim(queued_job, worker)

    job, attempt = Job.objects.get(), the_attempt()
    assert (job.state, job.attempts_counted) == (JobState.DISPATCHING, 1)
    assert (job.waiting_since, job.queue_deadline_at) == (None, None)
    assert job.queue_time_used >= 2 * SECOND
    assert attempt.worker_id == worker.worker_id
    slot = Lease.objects.get(resource_type=ResourceType.SLOT)
    permit_row = Lease.objects.get(status=LeaseStatus.ACTIVE, resource_type=ResourceType.PERMIT)
    old = Lease.objects.get(pk=reserved.pk)
    assert claimed.proof.lease_id == slot.pk
    assert claimed.proof.fence == Fence(epoch=slot.fence_epoch, counter=slot.fence)
    assert (old.status, old.end_reason) == (LeaseStatus.TRANSFERRED, EndReason.CLAIMED)
    assert permit_row.predecessor_id == old.pk
    assert permit_row.worker_id == slot.worker_id == worker.worker_id
    assert permit_row.first_reserved_at == slot.first_reserved_at == reserved.first_reserved_at
    assert min(slot.fence, permit_row.fence) > old.fence
    assert OutboxMessage.objects.count() == 0
    assert (claimed.task, claimed.args, claimed.kwargs) == ("tests.nothing", [], {})
    assert claimed.remaining == slot.expires_at - slot.created_at == 30 * SECOND
    event = JobEvent.objects.get(kind="claimed")
    assert (event.lease_id, event.actor) == (slot.pk, f"worker:{worker.worker_id}")


def already_claimed(job: Job, worker: Registered) -> None:
    stages.claim(job, worker, slot=1)


def cancelled(job: Job, worker: Registered) -> None:
    cancellation.ask(job.pk, actor="user:test", reason="no longer needed")


def draining(job: Job, worker: Registered) -> None:
    workers.drain(worker.worker_id)


def retired(job: Job, worker: Registered) -> None:
    workers.retire(worker.worker_id)


def replaced(job: Job, worker: Registered) -> None:
    register_worker("gpu1@here", slots=2, pid=5000)


def serving_another_queue(job: Job, worker: Registered) -> None:
    Slot.objects.update(queues=["cpu"])


def permit_expired(job: Job, worker: Registered) -> None:
    let_pass(30 * SECOND)
    workers.seen(worker.worker_id)


def hold_closed(job: Job, worker: Registered) -> None:
    hold = Hold.objects.get()
    Hold.objects.update(
        state="released", held=0, released=hold.amount, closed_at=hold.created_at, reason="no_usage"
    )


def queue_age_over(job: Job, worker: Registered) -> None:
    let_pass(timedelta(hours=24))


CLAIMS_REFUSED = [
    ("delivered twice", already_claimed, TransitionRefusal.NOT_QUEUED),
    ("of a cancelled job", cancelled, TransitionRefusal.JOB_TERMINAL),
    ("a draining worker", draining, TransitionRefusal.WORKER_NOT_LIVE),
    ("a retired worker", retired, TransitionRefusal.SLOT_NOT_OURS),
    ("an incarnation that was replaced", replaced, TransitionRefusal.SLOT_NOT_OURS),
    ("a slot of another queue", serving_another_queue, TransitionRefusal.WRONG_QUEUE),
    ("after the permit expired", permit_expired, TransitionRefusal.RESERVATION_EXPIRED),
    ("without an open hold", hold_closed, TransitionRefusal.HOLD_NOT_OPEN),
    ("after the queue deadline", queue_age_over, TransitionRefusal.QUEUE_AGE_SPENT),
]


@pytest.mark.parametrize(
    ("happens", "reason"), [pytest.param(*row[1:], id=row[0]) for row in CLAIMS_REFUSED]
)
def test_a_message_claims_nothing_and_changes_nothing(
    permit: PermitPool,
    queued_job: Job,
    worker: Registered,
    happens: Callable[[Job, Registered], None],
    reason: TransitionRefusal,
) -> None:
    happens(queued_job, worker)
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        stages.claim(queued_job, worker)

    assert refused.value.reason is reason
    assert photograph() == before


def test_a_hold_past_its_time_dispatches_nothing(
    admit: Admit, worker: Registered, policy: ServingPolicy
) -> None:
    """Case P6: a job with no permit to lose waits in its queue longer than its money is held."""
    ServingPolicy.objects.update(hold_ttl=timedelta(hours=1))
    job = admit()
    stages.queue_up()
    let_pass(timedelta(hours=1))
    workers.seen(worker.worker_id)
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        stages.claim(job, worker)

    assert refused.value.reason is TransitionRefusal.HOLD_EXPIRED
    assert photograph() == before


def test_a_message_of_an_unknown_attempt_is_refused(worker: Registered) -> None:
    with pytest.raises(TransitionRefused) as refused:
        attempts.claim(UUID(int=9), worker_id=worker.worker_id, slot_id=worker.slot_ids[0])
    assert refused.value.reason is TransitionRefusal.UNKNOWN_ATTEMPT


def test_a_late_message_of_an_earlier_attempt_is_refused(
    queued_job: Job, worker: Registered
) -> None:
    first = stages.claim(queued_job, worker)
    attempts.fail(first.proof, cause=EndReason.TASK_RETRY, error="")
    let_pass(2 * SECOND)
    stages.queue_up()
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        attempts.claim(
            first.proof.attempt_id, worker_id=worker.worker_id, slot_id=worker.slot_ids[0]
        )

    assert refused.value.reason is TransitionRefusal.NOT_THE_CURRENT_ATTEMPT
    assert photograph() == before


def test_a_busy_slot_takes_no_second_attempt(admit: Admit, worker: Registered) -> None:
    admit(), admit()
    first, second = stages.queue_up()
    stages.claim(first, worker)
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        stages.claim(second, worker)

    assert refused.value.reason is TransitionRefusal.NO_FREE_SLOT
    assert photograph() == before


def test_a_claim_ends_the_dead_lease_it_finds_on_its_slot(admit: Admit, worker: Registered) -> None:
    admit(), admit()
    first, second = stages.queue_up()
    stages.run(first, worker)
    let_pass(30 * SECOND, job=first)

    claimed = stages.claim(second, worker)

    assert Lease.objects.get(status=LeaseStatus.ACTIVE).pk == claimed.proof.lease_id
    first.refresh_from_db()
    assert (first.state, first.current_attempt_number) == (JobState.ADMITTED, 2)


def test_waiting_long_does_not_shorten_the_lease_that_is_granted_at_claim(
    admit: Admit, worker: Registered, policy: ServingPolicy
) -> None:
    """Case E4: queue, provider wait and run are three clocks (SPEC M7)."""
    ServingPolicy.objects.update(queue_age_max=60 * SECOND, run_time_max=60 * SECOND)
    job = admit()
    let_pass(55 * SECOND)
    workers.seen(worker.worker_id)
    stages.queue_up()

    assert stages.claim(job, worker).remaining == 30 * SECOND


def test_a_job_that_waited_nearly_too_long_runs_as_long_as_any_other(
    admit: Admit, worker: Registered
) -> None:
    """Case E4: it waits 55 of 60 seconds, runs 50 of 60, and completes."""
    ServingPolicy.objects.update(queue_age_max=60 * SECOND, run_time_max=60 * SECOND)
    job = admit()
    let_pass(55 * SECOND)
    workers.seen(worker.worker_id)
    stages.queue_up()
    claimed = stages.run(job, worker)

    for _ in range(12):
        let_pass(4 * SECOND)
        workers.seen(worker.worker_id)
        (answer,) = leases.renew_many([Renewal(proof=claimed.proof)])
        assert isinstance(answer.verdict, Renewed)

    assert attempts.complete(claimed.proof, result=None) is JobState.COMPLETED


def test_a_job_whose_reserved_life_is_over_is_ended_at_the_claim(
    admit: Admit, worker: Registered
) -> None:
    """Without permits no lease runs out that a sweep could find (SPEC B7)."""
    job = admit()
    stages.queue_up()
    ServingPolicy.objects.update(lease_life_max=SECOND)
    let_pass(2 * SECOND)
    workers.seen(worker.worker_id)

    with pytest.raises(TransitionRefused, match="a bound of the job ran out"):
        stages.claim(job, worker)

    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.FAILED, EndReason.MAX_LEASE_LIFE)
    assert not Lease.objects.filter(job=job).exists()
