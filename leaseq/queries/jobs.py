"""Jobs in a list, and one job with all that happened to it (SPEC H1, H4)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import CharField, F, Q, QuerySet
from django.db.models.functions import Cast

from leaseq.models import Attempt, Finding, Hold, Job, JobEvent, Lease, ProviderRequest, UsageRecord
from leaseq.queries.stats import LeaseLine, lease_line
from leaseq.vocabulary import TERMINAL_JOB_STATES, JobState

LOOKALIKES_MAX = 10
EVENT = ("version", "at", "kind", "from_state", "to_state", "actor", "reason", "data")
ATTEMPT = (
    *("id", "number", "state", "reason", "possibly_sent", "opened_at", "reserved_at"),
    *("claimed_at", "accepted_at", "started_at", "progress_at", "unknown_since", "ended_at"),
    *("progress", "error"),
)
REQUEST = (
    *("id", "provider", "model", "state", "provider_request_id", "idempotency_key"),
    *("prepared_at", "accepted_at", "started_at", "ended_at", "detail"),
)
HOLD = (
    *("id", "state", "reason", "amount", "held", "settled", "released"),
    *("created_at", "expires_at", "closed_at"),
)
USAGE = ("unit", "quantity", "unit_price", "cost", "currency")
FINDING = ("kind", "severity", "suggested_action", "opened_at", "closed_at", "evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job as one line of a list."""

    id: UUID
    task: str
    account: str
    queue: str
    state: JobState
    reason: str | None
    dead_letter: bool
    priority: int
    attempts: int
    submitted_at: datetime
    changed_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a job used of its bounds (SPEC L3), each with the bound itself."""

    queue_time: tuple[timedelta, timedelta]
    reserved_time: tuple[timedelta, timedelta]
    renewals: tuple[int, int]
    attempts: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Everything that is recorded of one job, in the order of time."""

    job: JobLine
    policy: str
    provider: str
    idempotency_key: str | None
    cancel_asked_at: datetime | None
    not_before: datetime
    queue_deadline_at: datetime | None
    cost_ceiling: Decimal
    currency: str
    spent: Spent
    events: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    leases: list[LeaseLine]
    requests: list[dict[str, Any]]
    holds: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    findings: list[dict[str, Any]]


def listed(
    *,
    limit: int,
    states: frozenset[JobState] | None = None,
    account: str | None = None,
    queue: str | None = None,
    only_dead_letters: bool = False,
) -> list[JobLine]:
    """Return the jobs admitted last, in these states, of this account and queue if asked."""
    rows = Job.objects.select_related("account").order_by("-pk")
    if states is not None:
        rows = rows.filter(state__in=sorted(states))
    if account is not None:
        rows = rows.filter(account__name=account)
    if queue is not None:
        rows = rows.filter(queue=queue)
    if only_dead_letters:
        rows = rows.filter(dead_letter=True)
    return [_line(one) for one in rows.defer("payload")[:limit]]


def not_ended() -> frozenset[JobState]:
    """Return the states from which a job still moves by itself."""
    return frozenset(JobState) - TERMINAL_JOB_STATES


def named(key: str) -> list[UUID]:
    """Return the jobs whose id is, begins or ends with this text; at most ten."""
    wanted = key.lower()
    try:
        return list(Job.objects.filter(pk=UUID(wanted)).values_list("pk", flat=True))
    except ValueError:
        alike = Q(text__endswith=wanted) | Q(text__startswith=wanted)
        texts = Job.objects.annotate(text=Cast("id", CharField())).filter(alike)
        return list(texts.order_by("pk").values_list("pk", flat=True)[:LOOKALIKES_MAX])


def page(job_id: UUID) -> JobPage:
    """Return one job with its story; raises Job.DoesNotExist."""
    job = Job.objects.select_related("account", "policy").get(pk=job_id)
    leases = Lease.objects.filter(job=job).select_related("slot", "pool", "worker")
    return JobPage(
        job=_line(job),
        policy=job.policy.name,
        provider=job.provider,
        idempotency_key=job.idempotency_key,
        cancel_asked_at=job.cancel_asked_at,
        not_before=job.not_before,
        queue_deadline_at=job.queue_deadline_at,
        cost_ceiling=job.cost_ceiling,
        currency=job.account.currency,
        spent=_spent(job),
        events=_rows(JobEvent.objects.filter(job=job).order_by("version"), EVENT),
        attempts=_rows(
            Attempt.objects.filter(job=job).order_by("number"), ATTEMPT, worker=F("worker__name")
        ),
        leases=[lease_line(one, task=job.task) for one in leases.order_by("created_at", "pk")],
        requests=_rows(
            ProviderRequest.objects.filter(attempt__job=job).order_by("prepared_at"),
            REQUEST,
            attempt=F("attempt__number"),
        ),
        holds=_rows(Hold.objects.filter(job=job).order_by("created_at"), HOLD),
        usage=_rows(
            UsageRecord.objects.filter(attempt__job=job).order_by("attempt__number", "unit"),
            USAGE,
            attempt=F("attempt__number"),
        ),
        findings=_rows(Finding.objects.filter(job=job).order_by("opened_at"), FINDING),
    )


def _rows(found: "QuerySet[Any]", fields: tuple[str, ...], **renamed: F) -> list[dict[str, Any]]:
    return [
        {name.removesuffix("_shown"): value for name, value in row.items()}
        for row in found.values(*fields, **{f"{name}_shown": of for name, of in renamed.items()})
    ]


def _line(job: Job) -> JobLine:
    return JobLine(
        id=job.pk,
        task=job.task,
        account=job.account.name,
        queue=job.queue,
        state=JobState(job.state),
        reason=job.reason,
        dead_letter=job.dead_letter,
        priority=job.priority,
        attempts=job.current_attempt_number,
        submitted_at=job.submitted_at,
        changed_at=job.changed_at,
        ended_at=job.ended_at,
    )


def _spent(job: Job) -> Spent:
    policy = job.policy
    return Spent(
        queue_time=(job.queue_time_used, job.queue_age_max),
        reserved_time=(job.reserved_time_used, policy.reserved_time_max),
        renewals=(job.renewals_used, policy.renewals_max),
        attempts=(job.attempts_counted, policy.attempts_max),
    )
