"""Every finite limit of a job, and the earliest deadline of them (SPEC B7, L3, M7)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from leaseq.vocabulary import EndReason

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBounds:
    """The clocks of one job and its current attempt, with their limits.

    `waiting_since` is None while the queue clock is paused: from claim to loss. While it
    runs it is max(submitted_at or re-admission, not_before), so it may lie ahead of now.
    `first_reserved_at` is the job's own, None where an explicit re-admission gave a new
    allowance; `reserved_at` is the current attempt's. `*_used` is what earlier attempts
    (for the queue: earlier waits) have spent.
    """

    waiting_since: datetime | None
    queue_time_used: timedelta
    queue_age_max: timedelta
    first_reserved_at: datetime | None
    lease_life_max: timedelta
    reserved_at: datetime | None
    reserved_time_used: timedelta
    reserved_time_max: timedelta
    accepted_at: datetime | None
    provider_wait_max: timedelta
    started_at: datetime | None
    run_time_max: timedelta
    progress_at: datetime | None
    stall_limit: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The instant from which a bound is hit, and the reason it then gives."""

    at: datetime
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left of the bounds that count across attempts; never negative (SPEC L3)."""

    lease_life: timedelta
    reserved_time: timedelta
    renewals: int
    queue_age: timedelta


def queue_deadline(bounds: JobBounds) -> datetime | None:
    """Return when the time spent waiting and eligible is used up; None while paused (M7)."""
    if bounds.waiting_since is None:
        return None
    return bounds.waiting_since + (bounds.queue_age_max - bounds.queue_time_used)


def lease_life_deadline(
    bounds: JobBounds, *, first_reserved_at: datetime | None = None
) -> datetime | None:
    """Return the end of the total reservation lifetime; the earlier start counts (B7, L3)."""
    starts = [at for at in (bounds.first_reserved_at, first_reserved_at) if at is not None]
    return min(starts) + bounds.lease_life_max if starts else None


def reserved_time_deadline(bounds: JobBounds) -> datetime | None:
    """Return when the job's total reserved time, all attempts together, is used up (B7)."""
    if bounds.reserved_at is None:
        return None
    return bounds.reserved_at + (bounds.reserved_time_max - bounds.reserved_time_used)


def run_deadline(bounds: JobBounds) -> datetime | None:
    """Return when the run limit ends; it counts from the start alone (M7)."""
    return None if bounds.started_at is None else bounds.started_at + bounds.run_time_max


def provider_wait_deadline(bounds: JobBounds) -> datetime | None:
    """Return until when an accepted request may wait for its start (M7)."""
    if bounds.accepted_at is None or bounds.started_at is not None:
        return None
    return bounds.accepted_at + bounds.provider_wait_max


def stall_deadline(bounds: JobBounds) -> datetime | None:
    """Return until when progress must be reported, where the policy asks for it (B6, M5)."""
    if bounds.stall_limit is None or bounds.started_at is None:
        return None
    seen_at = bounds.started_at
    if bounds.progress_at is not None and bounds.progress_at > seen_at:
        seen_at = bounds.progress_at
    return seen_at + bounds.stall_limit


def hard_deadlines(
    bounds: JobBounds, *, first_reserved_at: datetime | None = None
) -> Iterator[Deadline]:
    """Yield each deadline that runs now, in the order in which causes are judged."""
    running = (
        (
            lease_life_deadline(bounds, first_reserved_at=first_reserved_at),
            EndReason.MAX_LEASE_LIFE,
        ),
        (queue_deadline(bounds), EndReason.MAX_QUEUE_AGE),
        (reserved_time_deadline(bounds), EndReason.MAX_RESERVED_TIME),
        (run_deadline(bounds), EndReason.MAX_RUN_TIME),
        (provider_wait_deadline(bounds), EndReason.MAX_PROVIDER_WAIT),
        (stall_deadline(bounds), EndReason.STALLED),
    )
    for at, reason in running:
        if at is not None:
            yield Deadline(at=at, reason=reason)


def hard_deadline(
    bounds: JobBounds, *, first_reserved_at: datetime | None = None
) -> Deadline | None:
    """Return the earliest deadline with its reason; None where no clock runs yet."""
    deadlines = hard_deadlines(bounds, first_reserved_at=first_reserved_at)
    return min(deadlines, key=lambda deadline: deadline.at, default=None)


def capped_expiry(
    bounds: JobBounds,
    *,
    now: datetime,
    ttl: timedelta,
    first_reserved_at: datetime | None = None,
) -> datetime:
    """Return min(now + ttl, every hard deadline), for grants and renewals alike (B4)."""
    expires_at = now + ttl
    earliest = hard_deadline(bounds, first_reserved_at=first_reserved_at)
    return expires_at if earliest is None else min(expires_at, earliest.at)


def remaining(
    bounds: JobBounds,
    *,
    now: datetime,
    renewals_left: int,
    first_reserved_at: datetime | None = None,
) -> Remaining:
    """Return how much of each bound that counts across attempts is left (SPEC L3)."""
    life_ends_at = lease_life_deadline(bounds, first_reserved_at=first_reserved_at)
    reserved_ends_at = reserved_time_deadline(bounds)
    queue_left = bounds.queue_age_max - bounds.queue_time_used
    if bounds.waiting_since is not None:
        queue_left -= max(now - bounds.waiting_since, _ZERO)
    return Remaining(
        lease_life=_left(life_ends_at, now=now, whole=bounds.lease_life_max),
        reserved_time=_left(
            reserved_ends_at,
            now=now,
            whole=bounds.reserved_time_max - bounds.reserved_time_used,
        ),
        renewals=max(renewals_left, 0),
        queue_age=max(queue_left, _ZERO),
    )


def _left(ends_at: datetime | None, *, now: datetime, whole: timedelta) -> timedelta:
    return max(whole if ends_at is None else ends_at - now, _ZERO)
