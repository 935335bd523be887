"""Row locks, always in one order: job, attempt, leases by id, slot, pools by id, hold, account.

Every lock is `FOR NO KEY UPDATE`, so that rows which only refer to a locked one do not wait
(SPEC A5). The clock is read after these, in a later statement.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import OperationalError
from django.db.models import Count

from leaseq.db.transactions import connection
from leaseq.models import Account, Attempt, Hold, Job, Lease, PermitPool, Slot
from leaseq.vocabulary import LeaseStatus


@dataclass(slots=True)
class Locked:
    """One job with one attempt and that attempt's live leases, all locked."""

    job: Job
    attempt: Attempt
    leases: list[Lease]

    def lease(self, lease_id: UUID) -> Lease | None:
        """Return the live lease of this id among the attempt's, or None."""
        return next((one for one in self.leases if one.pk == lease_id), None)


def by_attempt(attempt_id: UUID) -> Locked | None:
    """Lock a job through one of its attempts, that attempt, and its live leases."""
    of_attempt = Attempt.objects.filter(pk=attempt_id).values("job_id")
    job = Job.objects.locked().select_related("policy").filter(pk__in=of_attempt).first()
    if job is None:
        return None
    attempt = Attempt.objects.locked().get(pk=attempt_id)
    return Locked(job, attempt, leases_of([attempt_id]))


def by_job(job_id: UUID, *, skip_locked: bool = False) -> Locked | None:
    """Lock a job with its current attempt and live leases; None if absent, or taken and skipped."""
    jobs = Job.objects.get_queryset().select_for_update(
        no_key=True, of=("self",), skip_locked=skip_locked
    )
    job = jobs.select_related("policy").filter(pk=job_id).first()
    if job is None:
        return None
    attempt = Attempt.objects.locked().get(job=job, number=job.current_attempt_number)
    return Locked(job, attempt, leases_of([attempt.pk]))


LOCK_NOT_AVAILABLE = "55P03"
# How long a pass or a heartbeat waits for a row before it leaves that row for later.
SHORTLY_MS = 250


def wait_at_most(milliseconds: int) -> None:
    """Let no lock of this transaction wait longer; `timed_out` tells the error that it then is."""
    with connection().cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{milliseconds}ms"])


def end_if_idle_for(span: timedelta) -> None:
    """Let the database end this transaction if its session does nothing for so long."""
    milliseconds = max(1, int(span.total_seconds() * 1000))
    with connection().cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)",
            [f"{milliseconds}ms"],
        )


def timed_out(error: OperationalError) -> bool:
    """Say whether an error is a lock that was not to be had in time."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def share(attempt_id: UUID) -> None:
    """Lock an attempt and its job FOR SHARE: renewals go on, and no verb changes either."""
    with connection().cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM leaseq_job j JOIN leaseq_attempt a ON a.job_id = j.id "
            "WHERE a.id = %s FOR SHARE OF j, a",
            [attempt_id],
        )


def leases_of(attempt_ids: Sequence[UUID]) -> list[Lease]:
    """Lock the live leases of these attempts, by id."""
    leases = Lease.objects.locked().filter(attempt_id__in=attempt_ids, status=LeaseStatus.ACTIVE)
    return list(leases.order_by("pk"))


def slot(slot_id: int) -> Slot | None:
    """Lock one slot with the worker that offers it."""
    return Slot.objects.locked().select_related("worker").filter(pk=slot_id).first()


def pools(pool_ids: Iterable[int]) -> dict[int, PermitPool]:
    """Lock permit pools by id: whoever counts and grants permits holds these."""
    rows = PermitPool.objects.locked().filter(pk__in=list(pool_ids)).order_by("pk")
    return {one.pk: one for one in rows}


def count_live_permits(pool_ids: Iterable[int], *, now: datetime) -> dict[int, int]:
    """Count the live permits of locked pools: an expired one does not block, swept or not (N3).

    Expired ones are locked, so that they stay dead until the pass has committed. One that another
    session has locked counts as live: its renewal may have read the clock in time and not yet be
    committed.
    """
    ids = list(pool_ids)
    dead = Lease.objects.get_queryset().select_for_update(
        no_key=True, of=("self",), skip_locked=True
    )
    over = dead.filter(pool_id__in=ids, status=LeaseStatus.ACTIVE, expires_at__lte=now)
    expired = Counter(over.order_by().values_list("pool_id", flat=True))
    rows = Lease.objects.filter(pool_id__in=ids, status=LeaseStatus.ACTIVE).order_by()
    active = rows.values_list("pool_id").annotate(count=Count("id"))
    return {pool_id: count - expired[pool_id] for pool_id, count in active}


def hold_of(job_id: UUID) -> Hold | None:
    """Lock the open hold of a job, or its latest one."""
    return Hold.objects.locked().filter(job_id=job_id).order_by("-created_at", "-pk").first()


def account(account_id: int) -> Account:
    """Lock an account: the last lock of the order, kept for as short as can be."""
    return Account.objects.locked().get(pk=account_id)
