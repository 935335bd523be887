from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from leaseq.errors import TransitionRefused
from leaseq.models import Attempt, Job, JobEvent, Lease, PermitPool, ServingPolicy, Slot
from leaseq.rules.renewal import Refused
from leaseq.services import attempts, cancellation, holds, leases, outbox, scheduling, workers
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
    PoolKind,
    RenewalRefusal,
    TransitionRefusal,
)
from tests.conftest import register_worker
from tests.races.conftest import Session, at_once, until_waiting
from tests.services import stages
from tests.services.aging import let_pass

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]
SECOND = timedelta(seconds=1)


def renew(claimed: Claimed) -> leases.Answer:
    return leases.renew_many([Renewal(proof=claimed.proof)])[0]


def expires_in(claimed: Claimed, left: timedelta) -> datetime:
    """Let time pass until the lease has about this much left, and return when it then expires."""
    let_pass(30 * SECOND - left)
    return Lease.objects.get(pk=claimed.proof.lease_id).expires_at


def until(instant: datetime) -> None:
    """Wait, in the database, until the authority's clock has passed this instant."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep_until(%s)", [instant])


def test_a_renewal_that_waited_beyond_the_expiry_is_refused(
    first: Session, second: Session, begun: Claimed
) -> None:
    """PROMISES 1.3: the clock is read after the row is locked, never before.

    first   BEGIN  locks the job ........ (expiry passes) ... COMMIT
    second                  renew: waits ---------------------------> too late
    """
    old_expiry = expires_in(begun, timedelta(seconds=0.4))
    before = Lease.objects.values().get()
    first.begin()
    first.do(lambda: Job.objects.locked().get())
    waits = second.start(lambda: renew(begun))
    until_waiting()
    until(old_expiry)
    first.commit()
    answer = waits.result(20)

    assert isinstance(answer.verdict, Refused)
    assert answer.verdict.reason is RenewalRefusal.LEASE_EXPIRED
    assert Lease.objects.values().get() == before


def test_a_renewal_that_waited_for_an_expiry_finds_the_lease_ended(
    first: Session, second: Session, begun: Claimed
) -> None:
    """One wins: here the expiry, which locked first.

    first   BEGIN  expire: ends the lease ... COMMIT
    second                  renew: waits -----------> the lease has ended
    """
    let_pass(30 * SECOND)
    first.begin()
    first.do(lambda: leases.expire(begun.job_id, actor="control:expire"))
    waits = second.start(lambda: renew(begun))
    until_waiting()
    first.commit()
    answer = waits.result(20)

    assert isinstance(answer.verdict, Refused)
    assert answer.verdict.reason is RenewalRefusal.LEASE_ENDED
    assert Lease.objects.get().status == LeaseStatus.EXPIRED


def test_an_expiry_that_meets_a_renewal_leaves_the_lease_alone(
    first: Session, begun: Claimed
) -> None:
    """One wins: here the renewal, which read the clock in time and commits after the expiry.

    first   BEGIN  renew in time ....... (old expiry passes) ....... COMMIT
    here                                    expire: nothing due               expire: nothing due
    """
    old_expiry = expires_in(begun, timedelta(seconds=0.4))
    first.begin()
    assert stages.count_verdicts([first.do(lambda: renew(begun))]) == {"renewed": 1}
    until(old_expiry)
    assert leases.expire(begun.job_id, actor="control:expire") is None
    first.commit()

    assert leases.expire(begun.job_id, actor="control:expire") is None
    assert Lease.objects.get().status == LeaseStatus.ACTIVE
    assert Attempt.objects.get().state == AttemptState.OPEN


def test_a_renewal_and_an_expiry_let_go_at_once_never_both_win(begun: Claimed) -> None:
    """Two sessions at one barrier, around the instant of expiry."""
    old_expiry = expires_in(begun, timedelta(seconds=0.05))

    def expire() -> bool:
        until(old_expiry)
        return leases.expire(begun.job_id, actor="control:expire") is not None

    answer, expired = at_once(lambda: renew(begun), expire)

    assert isinstance(answer, leases.Answer)
    renewed = stages.count_verdicts([answer]) == {"renewed": 1}
    # A sweep passes over a job that a refused renewal has locked, and comes again.
    swept = leases.expire(begun.job_id, actor="control:expire") is not None
    assert [renewed, expired, swept].count(True) == 1
    assert (Lease.objects.get().status == LeaseStatus.ACTIVE) is renewed


def test_a_renewal_that_waited_for_a_report_of_progress_counts_it(
    first: Session, second: Session, begun: Claimed
) -> None:
    """Progress reported while the renewal waits is seen by it.

    first   BEGIN  progress ............ COMMIT
    second                 renew: waits --------> not stalled
    """
    ServingPolicy.objects.update(stall_limit=10 * SECOND)
    let_pass(10 * SECOND)
    first.begin()
    first.do(lambda: attempts.progress(begun.proof, report={"done": 1}))
    waits = second.start(lambda: renew(begun))
    until_waiting()
    first.commit()

    assert stages.count_verdicts([waits.result(20)]) == {"renewed": 1}


def test_two_renewal_passes_at_once_renew_as_often_as_one(
    first: Session, second: Session, queued_with_permit: Job
) -> None:
    """Two control planes find the same due lease.

    first   BEGIN  renew_queued ............. COMMIT
    second                  renew_queued: takes what is free, and comes again
    """
    let_pass(10 * SECOND)
    workers.seen(Slot.objects.values_list("worker_id", flat=True)[0])
    first.begin()
    assert first.do(lambda: leases.renew_queued(limit=10)) == {"renewed": 1}
    assert second.do(lambda: leases.renew_queued(limit=10)) == {}
    first.commit()

    assert second.do(lambda: leases.renew_queued(limit=10)) == {}
    assert Lease.objects.get().renewal_count == 1


@pytest.fixture
def narrow(transactional_db: None) -> PermitPool:
    """A pool of one permit for the queue."""
    return PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=1)


@pytest.fixture
def queued_with_permit(narrow: PermitPool, queued_job: Job) -> Job:
    """A queued job that holds the one permit."""
    return queued_job


def test_two_claims_of_one_attempt_grant_one_slot(queued_job: Job, worker: Registered) -> None:
    """One message delivered twice at once: two sessions at one barrier, a slot each."""
    attempt_id = queued_job.attempts.get().pk

    def claim(slot_id: int) -> Callable[[], Claimed]:
        return lambda: attempts.claim(attempt_id, worker_id=worker.worker_id, slot_id=slot_id)

    came = at_once(*map(claim, worker.slot_ids))

    refused = [one for one in came if isinstance(one, TransitionRefused)]
    assert [one.reason for one in refused] == [TransitionRefusal.NOT_QUEUED]
    assert Lease.objects.count() == 1
    assert Job.objects.get().attempts_counted == 1


def test_two_attempts_at_one_slot_grant_it_once(
    admit: Callable[..., Job], worker: Registered
) -> None:
    """Two messages, two sessions at one barrier, one slot."""
    admit(), admit()
    ids = [job.attempts.get().pk for job in stages.queue_up()]

    def claim(attempt_id: Any) -> Callable[[], Claimed]:
        return lambda: attempts.claim(
            attempt_id, worker_id=worker.worker_id, slot_id=worker.slot_ids[0]
        )

    came = at_once(*map(claim, ids))

    refused = [one for one in came if isinstance(one, TransitionRefused)]
    assert [one.reason for one in refused] == [TransitionRefusal.NO_FREE_SLOT]
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 1


def test_two_passes_over_one_queue_grant_no_more_permits_than_the_pool_has(
    admit: Callable[..., Job],
) -> None:
    """Six sessions at one barrier, twelve jobs, five permits."""
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=5)
    for _ in range(12):
        admit()

    came = at_once(*[lambda: scheduling.reserve("gpu", limit=3)] * 6)

    assert all(isinstance(one, scheduling.Reserved) for one in came)
    live = Lease.objects.filter(status=LeaseStatus.ACTIVE).count()
    queued = Job.objects.filter(state=JobState.QUEUED).count()
    assert live == queued <= 5
    scheduling.reserve("gpu", limit=12)
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 5
    assert JobEvent.objects.filter(kind="reserved").count() == 5


def test_two_passes_take_different_jobs(
    first: Session, second: Session, admit: Callable[..., Job]
) -> None:
    """No pass waits for another.

    first   BEGIN  reserve: locks all who wait ...... COMMIT
    second                  reserve: passes them over
    """
    admit(), admit()
    first.begin()
    assert len(first.do(lambda: scheduling.reserve("gpu", limit=1)).queued) == 1
    assert second.do(lambda: scheduling.reserve("gpu", limit=1)).queued == []
    first.commit()
    assert len(second.do(lambda: scheduling.reserve("gpu", limit=5)).queued) == 1


def test_a_permit_in_the_middle_of_its_renewal_is_not_taken_for_dead(
    first: Session,
    second: Session,
    admit: Callable[..., Job],
    narrow: PermitPool,
    worker: Registered,
) -> None:
    """SPEC B3: the renewal read the clock in time, and commits after the old expiry.

    first   BEGIN  renew in time ...... (old expiry passes) ................ COMMIT
    second                                 reserve: the pool is full
    """
    admit()
    begun = stages.run(stages.queue_up()[0], worker)
    admit()
    old_expiry = expires_in(begun, timedelta(seconds=0.4))
    workers.seen(worker.worker_id)
    first.begin()
    assert stages.count_verdicts([first.do(lambda: renew(begun))]) == {"renewed": 1}
    until(old_expiry)
    reserved = second.do(lambda: scheduling.reserve("gpu", limit=1))
    first.commit()

    assert (reserved.queued, reserved.refused) == ([], {"no_permit_free": 1})
    assert narrow.leases.filter(status=LeaseStatus.ACTIVE).count() == 1


def test_a_cancel_request_that_waited_for_a_completion_is_told_so(
    first: Session, second: Session, begun: Claimed
) -> None:
    """SPEC M1, the completion commits first.

    first   BEGIN  complete ........... COMMIT
    second                 cancel: waits ------> already completed
    """
    first.begin()
    first.do(lambda: attempts.complete(begun.proof, result=1))
    waits = second.start(
        lambda: cancellation.ask(begun.job_id, actor="user:test", reason="no longer needed")
    )
    until_waiting()
    first.commit()

    with pytest.raises(TransitionRefused, match="the job is completed"):
        waits.result(20)
    job = Job.objects.get()
    assert (job.state, job.cancel_asked_at) == (JobState.COMPLETED, None)


def test_a_completion_that_waited_for_a_cancel_request_is_recorded_as_what_it_is(
    first: Session, second: Session, begun: Claimed
) -> None:
    """SPEC M1, the cancel request commits first.

    first   BEGIN  cancel ............... COMMIT
    second                complete: waits -------> completed after cancel
    """
    first.begin()
    first.do(lambda: cancellation.ask(begun.job_id, actor="user:test", reason="no need"))
    waits = second.start(lambda: attempts.complete(begun.proof, result=1))
    until_waiting()
    first.commit()

    assert waits.result(20) is JobState.CANCELLED
    assert Attempt.objects.get().state == AttemptState.COMPLETED_AFTER_CANCEL


def test_two_settlements_at_once_move_the_money_once(begun: Claimed) -> None:
    """PROMISES P13: eight sessions at one barrier, one hold."""
    attempts.complete(begun.proof, result=1)

    came = at_once(*[lambda: holds.settle(begun.job_id)] * 8)

    assert sorted(map(str, came)) == ["nothing_due"] * 7 + ["released"]
    job = Job.objects.get()
    assert job.holds.get().state == HoldState.RELEASED
    assert job.entries.count() == 2
    assert job.account.held == 0


def test_a_sweep_that_saw_a_lease_expire_does_not_undo_its_jobs_completion(
    first: Session, begun: Claimed
) -> None:
    """Case D1: the sweep read its list before, and acts after.

    sweep   lists the lease, 0.4 s before it is due
    first                       complete, in time
    sweep                                             expire: nothing due
    """
    old_expiry = expires_in(begun, timedelta(seconds=0.4))
    listed = list(Lease.objects.values_list("job_id", flat=True))
    first.do(lambda: attempts.complete(begun.proof, result=1))
    until(old_expiry)

    assert [leases.expire(one, actor="control:expire") for one in listed] == [None]

    job = Job.objects.get()
    assert (job.state, job.attempts.count()) == (JobState.COMPLETED, 1)
    assert holds.settle(job.pk) == "released"


def test_a_sweep_passes_over_a_job_that_is_being_worked_on(first: Session, begun: Claimed) -> None:
    """Case D1, overlapping.

    first   BEGIN  complete ............................ COMMIT
    here                    expire: passes the job over          expire: nothing due
    """
    old_expiry = expires_in(begun, timedelta(seconds=0.4))
    first.begin()
    first.do(lambda: attempts.complete(begun.proof, result=1))
    until(old_expiry)
    assert leases.expire(begun.job_id, actor="control:expire") is None
    first.commit()
    assert leases.expire(begun.job_id, actor="control:expire") is None

    assert Job.objects.get().state == JobState.COMPLETED


def test_two_sweeps_at_once_end_one_lease_once(begun: Claimed) -> None:
    """Case D6: eight sessions at one barrier, one expired lease."""
    let_pass(30 * SECOND)

    came = at_once(*[lambda: leases.expire(begun.job_id, actor="control:expire")] * 8)

    assert sum(one is not None for one in came) == 1
    assert Attempt.objects.count() == 2
    assert JobEvent.objects.filter(kind="readmitted").count() == 1


def test_two_publishers_at_once_take_each_message_once(admit: Callable[..., Job]) -> None:
    """Four sessions at one barrier, six messages."""
    register_worker("gpu1@here", slots=1)
    for _ in range(6):
        admit()
    scheduling.reserve("gpu", limit=6)

    came = at_once(*[lambda: outbox.take_due(limit=6)] * 4)

    taken = [bell.attempt_id for one in came if isinstance(one, list) for bell in one]
    assert len(taken) == len(set(taken)) == 6
