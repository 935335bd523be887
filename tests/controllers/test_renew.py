"""Permits of queued jobs are renewed in bulk, and refusals hide nobody (SPEC B8, case D8)."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import F

from leaseq.controllers import renew
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.models import ControlPass, Job, Lease, PermitPool, ServingPolicy, WorkerNode
from leaseq.services import scheduling
from leaseq.services.workers import Registered
from leaseq.vocabulary import PoolKind, WorkerState
from tests.conftest import register_worker
from tests.controllers.conftest import run_twice_at_once

AdmitOne = Callable[..., Job]


@pytest.fixture
def always_due(policy: ServingPolicy) -> None:
    """Let renewal be due as soon as a lease is granted."""
    policy.renew_every = timedelta(microseconds=1)
    policy.save()


@pytest.fixture
def pools(db: None) -> None:
    for queue in ("gpu", "cpu"):
        PermitPool.objects.create(kind=PoolKind.QUEUE, key=queue, limit=100)


pytestmark = pytest.mark.usefixtures("pools")


def run(batch: int = 100) -> PassSummary:
    return renew.run_once(PassLimits(batch=batch, seconds=30))


def queue_jobs(admit: AdmitOne, queue: str, *, count: int) -> None:
    for _ in range(count):
        admit(queue=queue)
    assert len(scheduling.reserve(queue, limit=count).queued) == count


@pytest.mark.usefixtures("always_due")
def test_a_due_lease_is_renewed_by_its_ttl_and_the_job_stays_as_it_was(
    admit: AdmitOne, worker: Registered
) -> None:
    queue_jobs(admit, "gpu", count=1)
    before, job = Lease.objects.get(), Job.objects.get()
    assert run().counts == {"renewed": 1}
    after = Lease.objects.get()
    assert after.expires_at > before.expires_at
    assert after.renewal_count == 1
    assert Job.objects.values().get() == Job.objects.filter(pk=job.pk).values().get()
    assert Job.objects.get().version == job.version


def test_a_lease_that_is_not_yet_due_is_left_alone(admit: AdmitOne, worker: Registered) -> None:
    queue_jobs(admit, "gpu", count=1)
    assert run().counts == {}
    assert Lease.objects.get().renewal_count == 0
    assert ControlPass.objects.get(name="renew").summary["complete"] is True


@pytest.mark.parametrize("batch", [4, 5, 6], ids=lambda batch: f"batch-of-{batch}")
def test_a_full_batch_is_followed_by_another_until_none_is_due(
    admit: AdmitOne, worker: Registered, policy: ServingPolicy, batch: int
) -> None:
    queue_jobs(admit, "gpu", count=5)
    # Due again only after the lease has run for a second: each is renewed once.
    policy.lease_ttl, policy.renew_every = timedelta(hours=1), timedelta(seconds=1)
    policy.save()
    assert run(batch).counts == {"renewed": 5}
    assert list(Lease.objects.values_list("renewal_count", flat=True)) == [1] * 5


def test_pages_full_of_refusals_keep_no_other_lease_from_renewal(
    admit: AdmitOne, worker: Registered, policy: ServingPolicy
) -> None:
    cpu = register_worker("cpu1@here", slots=1, queue="cpu", pid=4712)
    gone = WorkerNode.objects.filter(pk=cpu.worker_id)
    queue_jobs(admit, "cpu", count=5)
    queue_jobs(admit, "gpu", count=3)
    gone.update(state=WorkerState.STOPPED, seen_at=F("seen_at") - timedelta(hours=1))
    policy.lease_ttl, policy.renew_every = timedelta(hours=1), timedelta(seconds=1)
    policy.save()
    assert run(batch=2).counts == {"no_live_worker": 5, "renewed": 3}
    assert set(Lease.objects.filter(job__queue="gpu").values_list("renewal_count", flat=True)) == {
        1
    }
    assert set(Lease.objects.filter(job__queue="cpu").values_list("renewal_count", flat=True)) == {
        0
    }


@pytest.mark.usefixtures("always_due")
def test_out_of_time_a_pass_renews_one_batch_and_says_that_it_is_not_complete(
    admit: AdmitOne, worker: Registered
) -> None:
    queue_jobs(admit, "gpu", count=3)
    summary = renew.run_once(PassLimits(batch=1, seconds=0))
    assert summary.counts == {"renewed": 1}
    assert not summary.complete


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_two_passes_at_once_renew_each_lease_once(
    admit: AdmitOne, worker: Registered, policy: ServingPolicy
) -> None:
    """Both pick the same due leases; whoever waits for the locks finds them renewed."""
    queue_jobs(admit, "gpu", count=20)
    policy.lease_ttl, policy.renew_every = timedelta(hours=1), timedelta(minutes=1)
    policy.save()
    summaries = run_twice_at_once(run)
    assert all("errors" not in one.counts for one in summaries)
    assert set(Lease.objects.values_list("renewal_count", flat=True)) == {1}
