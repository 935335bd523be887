"""Somebody holds a row for long, in a transaction of their own: only what it names waits."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from leaseq.models import Account, Job, Lease, PermitPool, ServingPolicy
from leaseq.rules.renewal import Renewed
from leaseq.services import attempts, cancellation, holds, leases, metering, scheduling, workers
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Renewal, Unanswered
from leaseq.services.workers import Registered
from leaseq.vocabulary import JobState, PoolKind
from tests.races.conftest import Session
from tests.services import stages
from tests.services.aging import let_pass

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]
SECOND = timedelta(seconds=1)


def ask_to_cancel(job_id: UUID) -> Callable[[], JobState]:
    return lambda: cancellation.ask(job_id, actor="user:test", reason="no longer needed")


def test_a_job_that_is_held_costs_no_other_job_of_the_worker_its_lease(
    first: Session, admit: Callable[..., Job], worker: Registered
) -> None:
    """Both jobs of one worker are renewed in one bulk while one of them is locked.

    first   BEGIN  cancel of the one job ........................... COMMIT
    here                     renew both: the other is renewed, the one has no answer yet
    """
    held, free = admit(), admit()
    stages.queue_up()
    mine = [stages.claim(job, worker, slot=slot) for slot, job in enumerate((held, free))]
    for one in mine:
        attempts.begin(one.proof)
    before = Lease.objects.get(pk=mine[0].proof.lease_id)
    first.begin()
    first.do(ask_to_cancel(held.pk))

    blocked, renewed = leases.renew_many([Renewal(proof=one.proof) for one in mine])

    assert isinstance(blocked.verdict, Unanswered)
    assert isinstance(renewed.verdict, Renewed)
    assert Lease.objects.get(pk=before.pk).expires_at == before.expires_at
    assert Lease.objects.get(pk=mine[1].proof.lease_id).renewal_count == 1
    first.commit()
    follow = Renewal(proof=mine[0].proof, cancel_follow=True)
    (answer,) = leases.renew_many([follow])
    assert isinstance(answer.verdict, Renewed)
    assert answer.cancel_asked


def test_a_queued_job_that_is_held_costs_no_other_its_reservation(
    first: Session, admit: Callable[..., Job], worker: Registered
) -> None:
    """The control plane renews what is free and comes again for the rest.

    first   BEGIN  cancel of the one job ............... ROLLBACK
    here                     renew: the other                     renew: the one
    """
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=5)
    held, free = admit(), admit()
    scheduling.reserve("gpu", limit=10)
    let_pass(12 * SECOND)
    workers.seen(worker.worker_id)
    first.begin()
    first.do(ask_to_cancel(held.pk))

    assert leases.renew_queued(limit=10) == {"renewed": 1}
    assert Lease.objects.get(job=free).renewal_count == 1
    first.roll_back()
    assert leases.renew_queued(limit=10) == {"renewed": 1}
    assert Lease.objects.get(job=held).renewal_count == 1


def test_an_account_that_is_held_keeps_its_settlement_and_blocks_no_pass(
    first: Session, admit: Callable[..., Job], begun: Claimed
) -> None:
    """A caller admits inside a long transaction, which holds the account.

    first   BEGIN  admit ............................ COMMIT
    here                   settle: account busy                settle: released
    """
    attempts.complete(begun.proof, result=1)
    first.begin()
    first.do(admit)

    assert holds.settle(begun.job_id) == "account_busy"
    assert Account.objects.get().held == 1
    first.commit()
    assert holds.settle(begun.job_id) == "released"
    assert Account.objects.get().held == 1, "that of the caller's job"


def test_a_frozen_task_inside_fenced_keeps_its_job_no_longer_than_its_lease(
    first: Session, begun: Claimed
) -> None:
    """The session does nothing any more; the database ends it, and the sweep goes on.

    first   BEGIN  fenced ... (frozen) ... ended by the database
    here                                      expire: the attempt is lost
    """
    ServingPolicy.objects.update(lease_ttl=2 * SECOND, renew_every=SECOND / 2)
    let_pass(29 * SECOND)
    block = metering.fenced(begun.proof)
    first.do(block.__enter__)
    assert leases.expire(begun.job_id, actor="control:expire") is None, "it is held"

    stages.until_true(
        lambda: leases.expire(begun.job_id, actor="control:expire") is not None, within_s=10
    )
    assert Job.objects.get().state == JobState.ADMITTED
