"""One job's story as tables for its page: every event, then what belongs to it (SPEC H1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db.models import Model, QuerySet

from leaseq.models import (
    Attempt,
    Finding,
    Hold,
    Job,
    JobEvent,
    Lease,
    LedgerEntry,
    ProviderRequest,
    UsageRecord,
)
from leaseq.queries import wording
from leaseq.vocabulary import LeaseStatus
from leaseq_admin import cells

ROWS_MAX = 200
DATA_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under a heading; `is_cut` where only the latest of them are here."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str
    is_cut: bool = False
    all_url: str = ""


def of(job: Job, *, now: datetime) -> list[Table]:
    """Return the story of a job, each table in the order of time and of at most 200 rows."""
    currency = job.account.currency
    return [
        _events(job),
        _attempts(job),
        _leases(job, now=now),
        _requests(job),
        _holds(job, currency=currency),
        _entries(job),
        _usage(job),
        _findings(job),
    ]


def _events(job: Job) -> Table:
    return _table(
        "Timeline",
        ("#", "at", "event", "state", "attempt", "actor", "reason", "data"),
        JobEvent.objects.filter(job=job).select_related("attempt").order_by("-version"),
        row=_event,
        empty="Nothing has happened yet.",
        all_url=cells.list_of(JobEvent, job__id=job.pk),
    )


def _event(event: JobEvent) -> list[str]:
    data = ", ".join(f"{name}: {value}" for name, value in event.data.items())
    return [
        cells.row_link(JobEvent, event.pk, str(event.version)),
        cells.instant(event.at),
        wording.words(event.kind),
        _move(event),
        _attempt_link(event.attempt),
        cells.actor(event.actor),
        cells.reason(event.reason),
        cells.prose(_cut(data)),
    ]


def _move(event: JobEvent) -> str:
    after = wording.words(event.to_state)
    if event.from_state in {None, event.to_state}:
        return after
    return f"{wording.words(event.from_state)} → {after}"


def _attempts(job: Job) -> Table:
    return _table(
        "Attempts",
        (
            *("attempt", "state", "reason", "error", "possibly sent", "worker"),
            *("claimed", "started", "ended"),
        ),
        Attempt.objects.filter(job=job)
        .select_related("worker")
        .defer("result", "progress")
        .order_by("-number"),
        row=lambda one: [
            _attempt_link(one),
            wording.words(one.state),
            wording.words(one.reason),
            cells.prose(_cut(one.error)),
            "yes" if one.possibly_sent else "no",
            _named(one.worker),
            cells.instant(one.claimed_at),
            cells.instant(one.started_at),
            cells.instant(one.ended_at),
        ],
        empty="No attempt.",
        all_url=cells.list_of(Attempt, job__id=job.pk),
    )


def _leases(job: Job, *, now: datetime) -> Table:
    return _table(
        "Leases",
        (
            *("lease", "of", "attempt", "owner", "status", "reason", "time left", "renewals"),
            *("granted", "ended"),
        ),
        Lease.objects.filter(job=job)
        .select_related("attempt", "slot", "pool", "worker")
        .order_by("-created_at", "-pk"),
        row=partial(_lease, now=now),
        empty="It holds no lease, and never did.",
        all_url=cells.list_of(Lease, job__id=job.pk),
    )


def _lease(lease: Lease, *, now: datetime) -> list[str]:
    return [
        _link(Lease, lease.pk),
        _named(lease.slot or lease.pool),
        _attempt_link(lease.attempt),
        _named(lease.worker) if lease.worker else "control plane",
        wording.words(lease.status),
        wording.words(lease.end_reason),
        left_of(lease, now=now),
        str(lease.renewals_before + lease.renewal_count),
        cells.instant(lease.created_at),
        cells.instant(lease.ended_at),
    ]


def left_of(lease: Lease, *, now: datetime) -> str:
    """Show how long a lease still lives; an ended one has no time left."""
    if lease.status != LeaseStatus.ACTIVE:
        return wording.NOTHING
    return cells.time_left(lease.expires_at, now=now)


def _requests(job: Job) -> Table:
    return _table(
        "Provider requests",
        (
            *("request", "attempt", "provider", "model", "state", "provider's id", "prepared"),
            *("accepted", "started", "ended", "detail"),
        ),
        ProviderRequest.objects.filter(attempt__job=job)
        .select_related("attempt")
        .order_by("-prepared_at"),
        row=lambda one: [
            _link(ProviderRequest, one.pk),
            _attempt_link(one.attempt),
            one.provider,
            one.model,
            wording.words(one.state),
            cells.prose(one.provider_request_id or ""),
            cells.instant(one.prepared_at),
            cells.instant(one.accepted_at),
            cells.instant(one.started_at),
            cells.instant(one.ended_at),
            cells.prose(one.detail),
        ],
        empty="No request was prepared for a provider.",
    )


def _holds(job: Job, *, currency: str) -> Table:
    return _table(
        "Holds",
        (
            *("hold", "state", "reason", "authorised", "held", "settled", "released"),
            *("created", "expires", "closed"),
        ),
        Hold.objects.filter(job=job).order_by("-created_at"),
        row=lambda one: [
            _link(Hold, one.pk),
            wording.words(one.state),
            wording.words(one.reason),
            cells.money(one.amount, currency),
            cells.money(one.held, currency),
            cells.money(one.settled, currency),
            cells.money(one.released, currency),
            cells.instant(one.created_at),
            cells.instant(one.expires_at),
            cells.instant(one.closed_at),
        ],
        empty="No money was held.",
        all_url=cells.list_of(Hold, job__id=job.pk),
    )


def _entries(job: Job) -> Table:
    return _table(
        "Ledger entries",
        ("entry", "at", "kind", "from", "to", "amount", "actor", "reason"),
        LedgerEntry.objects.filter(job=job).order_by("-pk"),
        row=lambda one: [
            cells.row_link(LedgerEntry, one.pk, str(one.pk)),
            cells.instant(one.at),
            wording.words(one.kind),
            wording.words(one.source),
            wording.words(one.target),
            cells.money(one.amount, one.currency),
            cells.actor(one.actor),
            cells.reason(one.reason),
        ],
        empty="No money was moved.",
        all_url=cells.list_of(LedgerEntry, job__id=job.pk),
    )


def _usage(job: Job) -> Table:
    return _table(
        "Usage",
        (
            *("usage", "attempt", "provider", "model", "quantity", "unit", "unit price", "cost"),
            *("settled by", "recorded"),
        ),
        UsageRecord.objects.filter(attempt__job=job).select_related("attempt").order_by("-pk"),
        row=lambda one: [
            cells.row_link(UsageRecord, one.pk, str(one.pk)),
            _attempt_link(one.attempt),
            one.provider,
            one.model,
            wording.number(one.quantity),
            one.unit,
            cells.money(one.unit_price, one.currency),
            cells.money(one.cost, one.currency),
            _link(LedgerEntry, one.settled_by_id),
            cells.instant(one.recorded_at),
        ],
        empty="No usage was recorded.",
    )


def _findings(job: Job) -> Table:
    return _table(
        "Findings",
        ("finding", "kind", "severity", "suggested action", "opened", "closed"),
        Finding.objects.filter(job=job).order_by("-pk"),
        row=lambda one: [
            cells.row_link(Finding, one.pk, str(one.pk)),
            wording.words(one.kind),
            wording.words(one.severity),
            cells.prose(one.suggested_action),
            cells.instant(one.opened_at),
            cells.instant(one.closed_at),
        ],
        empty="Nothing about it needs a person's eye.",
        all_url=cells.list_of(Finding, job__id=job.pk),
    )


def _table(
    heading: str,
    columns: Sequence[str],
    newest_first: QuerySet[Any],
    *,
    row: Callable[[Any], list[str]],
    empty: str,
    all_url: str = "",
) -> Table:
    found = list(newest_first[: ROWS_MAX + 1])
    return Table(
        heading=heading,
        columns=columns,
        rows=[row(one) for one in reversed(found[:ROWS_MAX])],
        empty=empty,
        is_cut=len(found) > ROWS_MAX,
        all_url=all_url,
    )


def _cut(text: str) -> str:
    return text if len(text) <= DATA_LENGTH_MAX else f"{text[:DATA_LENGTH_MAX]} …"


def _attempt_link(attempt: Attempt | None) -> str:
    if attempt is None:
        return wording.NOTHING
    return cells.row_link(Attempt, attempt.pk, str(attempt.number))


def _named(row: Model | None) -> str:
    return wording.NOTHING if row is None else cells.row_link(type(row), row.pk, str(row))


def _link(model: type[Model], key: Any) -> str:
    if key is None:
        return wording.NOTHING
    return cells.row_link(model, key, str(key) if isinstance(key, int) else wording.tail(key))
