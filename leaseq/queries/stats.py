"""What the whole installation is doing now: queues, workers, permits, money, passes (SPEC H3)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, F, Min, OuterRef, Q

from leaseq.conf import settings
from leaseq.models import (
    Account,
    Attempt,
    ControlPass,
    Finding,
    Job,
    Lease,
    PermitPool,
    Slot,
    WorkerNode,
)
from leaseq.vocabulary import (
    EXECUTING_JOB_STATES,
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
    WorkerState,
)

RESERVED = (JobState.RESERVED, JobState.QUEUED)
PRESENT = (WorkerState.LIVE, WorkerState.DRAINING)


@dataclass(slots=True, kw_only=True)
class QueueLine:
    """A queue: jobs by where they stand, and its slots; `oldest_at` is of jobs that wait."""

    queue: str
    waiting: int = 0
    queued: int = 0
    executing: int = 0
    oldest_at: datetime | None = None
    slots: int = 0
    slots_free: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """A worker process; `silent` where it was last seen longer than the grace ago."""

    id: UUID
    name: str
    node: str
    pid: int
    pool: str
    state: WorkerState
    silent: bool
    queues: list[str]
    slots: int
    leases: int
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """A permit pool: permits live by the clock, against its limit."""

    pool: str
    live: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLine:
    """An account's money: available is limit less held less settled."""

    account: str
    currency: str
    is_open: bool
    limit: Decimal
    held: Decimal
    settled: Decimal
    available: Decimal
    open_holds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLine:
    """A pass of the control plane: when it last finished and what it did."""

    name: str
    finished_at: datetime
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLine:
    """A lease: of what, for which job, whose (None: the control plane), and until when."""

    id: UUID
    resource: str
    job_id: UUID
    task: str
    owner: str | None
    status: LeaseStatus
    expires_at: datetime
    renewals: int
    fence: str


def queues(*, now: datetime) -> list[QueueLine]:
    """Return every queue that has a job not yet ended, or a slot of a live worker."""
    lines: dict[str, QueueLine] = {}

    def line(queue: str) -> QueueLine:
        return lines.setdefault(queue, QueueLine(queue=queue))

    waiting = Job.objects.filter(state=JobState.ADMITTED).values("queue").order_by("queue")
    for head in waiting.annotate(jobs=Count("pk"), oldest=Min("submitted_at")):
        line(head["queue"]).waiting = head["jobs"]
        line(head["queue"]).oldest_at = head["oldest"]
    active = Job.objects.filter(state__in=[*RESERVED, *sorted(EXECUTING_JOB_STATES)])
    for row in active.values("queue", "state").order_by("queue").annotate(jobs=Count("pk")):
        if row["state"] in RESERVED:
            line(row["queue"]).queued += row["jobs"]
        else:
            line(row["queue"]).executing += row["jobs"]
    for names, taken in _slots(now=now):
        for name in names:
            line(name).slots += 1
            line(name).slots_free += not taken
    return sorted(lines.values(), key=lambda one: one.queue)


def _slots(*, now: datetime) -> list[tuple[list[str], bool]]:
    grace = timedelta(seconds=settings().worker_grace_seconds)
    live = Lease.objects.filter(slot=OuterRef("pk"), status=LeaseStatus.ACTIVE, expires_at__gt=now)
    slots = Slot.objects.filter(worker__state=WorkerState.LIVE, worker__seen_at__gt=now - grace)
    return list(slots.annotate(taken=Exists(live)).values_list("queues", "taken"))


def workers(*, now: datetime, also_over: bool, limit: int) -> list[WorkerLine]:
    """Return the workers that are present, the latest first; those that are over if asked."""
    grace = timedelta(seconds=settings().worker_grace_seconds)
    rows = WorkerNode.objects.order_by("-started_at")
    if not also_over:
        rows = rows.filter(state__in=PRESENT)
    rows = rows.annotate(slot_count=Count("slots", distinct=True))[:limit]
    owned = Lease.objects.filter(
        worker__in=[one.pk for one in rows], status=LeaseStatus.ACTIVE, expires_at__gt=now
    )
    leases = dict(owned.order_by().values_list("worker_id").annotate(Count("pk")))
    return [
        WorkerLine(
            id=one.pk,
            name=one.name,
            node=one.node,
            pid=one.pid,
            pool=one.pool,
            state=WorkerState(one.state),
            silent=one.state in PRESENT and one.seen_at <= now - grace,
            queues=one.queues,
            slots=one.slot_count,
            leases=leases.get(one.pk, 0),
            started_at=one.started_at,
            seen_at=one.seen_at,
            stopped_at=one.stopped_at,
        )
        for one in rows
    ]


def pools(*, now: datetime) -> list[PoolLine]:
    """Return the permit pools with the permits that are live by the clock (SPEC N3)."""
    live = Q(leases__status=LeaseStatus.ACTIVE, leases__expires_at__gt=now)
    counted = PermitPool.objects.annotate(live=Count("leases", filter=live))
    return [
        PoolLine(pool=str(one), live=one.live, limit=one.limit)
        for one in counted.order_by("kind", "key")
    ]


def accounts(*, name: str | None = None) -> list[AccountLine]:
    """Return the money of every account, or of the one of this name."""
    rows = Account.objects.order_by("name")
    if name is not None:
        rows = rows.filter(name=name)
    held = Count("holds", filter=Q(holds__state=HoldState.HELD))
    return [
        AccountLine(
            account=one.name,
            currency=one.currency,
            is_open=one.is_open,
            limit=one.limit,
            held=one.held,
            settled=one.settled,
            available=one.limit - one.held - one.settled,
            open_holds=one.open_holds,
        )
        for one in rows.annotate(open_holds=held)
    ]


def passes() -> list[PassLine]:
    """Return when each pass last finished, and what it did."""
    return [
        PassLine(name=one.name, finished_at=one.finished_at, summary=one.summary)
        for one in ControlPass.objects.order_by("name")
    ]


def leases(*, limit: int, worker: str | None = None) -> list[LeaseLine]:
    """Return the active leases that run out first, of one worker's name if asked."""
    rows = Lease.objects.filter(status=LeaseStatus.ACTIVE).order_by("expires_at", "pk")
    if worker is not None:
        rows = rows.filter(worker__name=worker)
    rows = rows.select_related("slot", "pool", "worker").annotate(task=F("job__task"))
    return [lease_line(one, task=one.task) for one in rows[:limit]]


def lease_line(lease: Lease, *, task: str) -> LeaseLine:
    """Return one lease as it is shown; slot, pool and worker should be at hand."""
    unit = lease.slot if lease.slot is not None else lease.pool
    return LeaseLine(
        id=lease.pk,
        resource=f"{lease.resource_type} {unit}",
        job_id=lease.job_id,
        task=task,
        owner=None if lease.worker is None else lease.worker.name,
        status=LeaseStatus(lease.status),
        expires_at=lease.expires_at,
        renewals=lease.renewals_before + lease.renewal_count,
        fence=f"{lease.fence_epoch}.{lease.fence}",
    )


def attention() -> dict[str, int]:
    """Count what a person should look at: findings, unknown outcomes, dead letters."""
    return {
        "open_findings": Finding.objects.filter(closed_at__isnull=True).count(),
        "outcomes_unknown": Attempt.objects.filter(state=AttemptState.OUTCOME_UNKNOWN).count(),
        "dead_letters": Job.objects.filter(dead_letter=True).count(),
    }
