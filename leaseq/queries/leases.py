"""Live leases: permits against limits, slots and who holds them (SPEC H1, N3)."""

from datetime import datetime, timedelta

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from leaseq.conf import settings
from leaseq.db import clock
from leaseq.models import Lease, PermitPool, Slot, WorkerNode
from leaseq.vocabulary import LeaseStatus, PoolKind, WorkerState


def pools_for(*, account: str, queue: str, policy: str, provider: str) -> QuerySet[PermitPool]:
    """Return the pools in which a job of these names needs a permit each."""
    return PermitPool.objects.filter(
        Q(kind=PoolKind.ACCOUNT, key=account)
        | Q(kind=PoolKind.QUEUE, key=queue)
        | Q(kind=PoolKind.POLICY, key=policy)
        | Q(kind=PoolKind.PROVIDER, key=provider)
    )


def full_pools(*, account: str, queue: str, policy: str, provider: str) -> list[str]:
    """Return the names of those pools in which no permit is free now; expired rows are free."""
    live = Q(leases__status=LeaseStatus.ACTIVE, leases__expires_at__gt=clock.read())
    pools = pools_for(account=account, queue=queue, policy=policy, provider=provider)
    counted = pools.annotate(live=Count("leases", filter=live))
    return [str(pool) for pool in counted.filter(live__gte=F("limit"))]


def live_slots(queue: str, *, now: datetime) -> QuerySet[Slot]:
    """Return the slots that a present, not draining worker offers to this queue."""
    grace = timedelta(seconds=settings().worker_grace_seconds)
    return Slot.objects.filter(
        queues__contains=[queue], worker__state=WorkerState.LIVE, worker__seen_at__gt=now - grace
    )


def free_slots(queue: str, *, now: datetime) -> int:
    """Count those of them on which nobody holds a live lease."""
    taken = Lease.objects.filter(slot=OuterRef("pk"), status=LeaseStatus.ACTIVE, expires_at__gt=now)
    return live_slots(queue, now=now).filter(~Exists(taken)).count()


def served_queues(*, now: datetime) -> list[str]:
    """Return the queues for which some live worker offers a slot."""
    grace = timedelta(seconds=settings().worker_grace_seconds)
    slots = Slot.objects.filter(
        worker__state=WorkerState.LIVE, worker__seen_at__gt=now - grace
    ).values_list("queues", flat=True)
    return sorted({queue for queues in slots for queue in queues})


def lately_served_queues(*, now: datetime) -> set[str]:
    """Return the queues of workers seen within the grace period, even if they ended since (B6)."""
    grace = timedelta(seconds=settings().worker_grace_seconds)
    seen = WorkerNode.objects.filter(seen_at__gt=now - grace).values_list("queues", flat=True)
    return {queue for queues in seen for queue in queues}
