"""Renew or refuse: the new expiry, or the one reason why not (SPEC B4, B4a, B5, B6)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from leaseq.rules import bounds as limits
from leaseq.rules.bounds import JobBounds, Remaining
from leaseq.rules.ownership import LeaseFacts, OwnerProof, fence_matches
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    AttemptState,
    JobState,
    LeaseStatus,
    RenewalRefusal,
)


class Stage(StrEnum):
    """Which evidence of progress a renewal needs (SPEC B6)."""

    WAITING = "waiting"
    EXECUTING = "executing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalFacts:
    """All that a renewal is decided by, read under the row locks.

    `now` is the authority's clock, read after the locks were taken. `renewals_used` are the
    renewals of the job's earlier attempts; those of this lease and of the leases it followed
    stand in the lease. `has_live_worker` says whether a live worker or an admissible
    provider was seen for the queue within the grace period. `cancel_follow` says that the
    owner renews only to follow a cancellation, until `stop_at` (SPEC B4a).
    """

    now: datetime
    proof: OwnerProof
    expected_version: int | None
    renewal_key: str | None
    lease: LeaseFacts | None
    attempt_state: AttemptState
    job_state: JobState
    cancel_asked_at: datetime | None
    cancel_follow: bool
    stop_at: datetime | None
    policy_open: bool
    ttl: timedelta
    bounds: JobBounds
    renewals_max: int
    renewals_used: int
    stage: Stage
    has_live_worker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Write expires_at, version + 1, renewal_count + 1, renewed_at and the key; nothing else."""

    expires_at: datetime
    remaining: Remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyRenewed:
    """The renewal was made before: write nothing, tell the current state (SPEC B5)."""

    expires_at: datetime
    version: int
    remaining: Remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The lease keeps its expiry. `remaining` is None where the caller is not the owner."""

    reason: RenewalRefusal
    remaining: Remaining | None


def decide_renewal(facts: RenewalFacts) -> Renewed | AlreadyRenewed | Refused:
    """Say whether a lease may live on, and until when.

    Causes are judged in the order of `RenewalRefusal`: ownership first, so that a stale
    owner learns nothing about the job. The new expiry is min(now + ttl, every hard
    deadline); a lease that has expired is never revived (SPEC M2).
    """
    lease = facts.lease
    if lease is None:
        return Refused(reason=RenewalRefusal.UNKNOWN_LEASE, remaining=None)
    reason = _judge_identity(facts, lease)
    if reason is not None:
        return Refused(reason=reason, remaining=None)
    left = _remaining(facts, lease)
    reason = _judge_lease(facts, lease)
    if reason is not None:
        return Refused(reason=reason, remaining=left)
    if _is_repeat(facts, lease):
        return AlreadyRenewed(expires_at=lease.expires_at, version=lease.version, remaining=left)
    reason = _judge_job(facts, lease) or _judge_bounds(facts, lease) or _judge_progress(facts)
    if reason is not None:
        return Refused(reason=reason, remaining=left)
    return Renewed(expires_at=_new_expiry(facts, lease), remaining=_after_one(left))


def _judge_identity(facts: RenewalFacts, lease: LeaseFacts) -> RenewalRefusal | None:
    if not fence_matches(facts.proof, lease):
        return RenewalRefusal.STALE_OWNER
    if facts.proof.attempt_id != lease.attempt_id:
        return RenewalRefusal.WRONG_ATTEMPT
    return None


def _judge_lease(facts: RenewalFacts, lease: LeaseFacts) -> RenewalRefusal | None:
    version_holds = facts.expected_version in (None, lease.version)
    if not version_holds and not _is_repeat(facts, lease):
        return RenewalRefusal.VERSION_CHANGED
    if lease.status is not LeaseStatus.ACTIVE:
        return RenewalRefusal.LEASE_ENDED
    if lease.expires_at <= facts.now:
        return RenewalRefusal.LEASE_EXPIRED
    return None


def _is_repeat(facts: RenewalFacts, lease: LeaseFacts) -> bool:
    # The fence already matched, and under one fence only renewals bump the version.
    if lease.renewed_at is None:
        return False
    if facts.renewal_key is not None and facts.renewal_key == lease.renewal_key:
        return True
    return facts.expected_version == lease.version - 1


def _judge_job(facts: RenewalFacts, lease: LeaseFacts) -> RenewalRefusal | None:
    last_seen_at = lease.created_at if lease.renewed_at is None else lease.renewed_at
    if facts.now < last_seen_at:
        return RenewalRefusal.CLOCK_STEPPED_BACK
    if facts.attempt_state is not AttemptState.OPEN:
        return RenewalRefusal.ATTEMPT_CLOSED
    if facts.job_state in TERMINAL_JOB_STATES:
        return RenewalRefusal.JOB_TERMINAL
    if facts.cancel_asked_at is not None:
        # Following a cancellation needs no open policy, only time left before the stop.
        return None if _may_follow(facts) else RenewalRefusal.CANCEL_ASKED
    if not facts.policy_open:
        return RenewalRefusal.POLICY_CLOSED
    return None


def _may_follow(facts: RenewalFacts) -> bool:
    return facts.cancel_follow and facts.stop_at is not None and facts.now < facts.stop_at


def _judge_bounds(facts: RenewalFacts, lease: LeaseFacts) -> RenewalRefusal | None:
    bounds, now = facts.bounds, facts.now
    life_ends_at = limits.lease_life_deadline(bounds, first_reserved_at=lease.first_reserved_at)
    if _is_past(life_ends_at, now):
        return RenewalRefusal.LEASE_LIFE_SPENT
    if _is_past(limits.queue_deadline(bounds), now):
        return RenewalRefusal.QUEUE_AGE_SPENT
    if _is_past(limits.reserved_time_deadline(bounds), now):
        return RenewalRefusal.RESERVED_TIME_SPENT
    if _renewals_left(facts, lease) <= 0:
        return RenewalRefusal.RENEWAL_BUDGET_SPENT
    if _is_past(limits.run_deadline(bounds), now):
        return RenewalRefusal.RUN_LIMIT_SPENT
    if _is_past(limits.provider_wait_deadline(bounds), now):
        return RenewalRefusal.PROVIDER_WAIT_SPENT
    return None


def _judge_progress(facts: RenewalFacts) -> RenewalRefusal | None:
    if facts.stage is Stage.WAITING and not facts.has_live_worker:
        return RenewalRefusal.NO_LIVE_WORKER
    if _is_past(limits.stall_deadline(facts.bounds), facts.now):
        return RenewalRefusal.NO_PROGRESS
    return None


def _is_past(deadline: datetime | None, now: datetime) -> bool:
    return deadline is not None and deadline <= now


def _new_expiry(facts: RenewalFacts, lease: LeaseFacts) -> datetime:
    expires_at = limits.capped_expiry(
        facts.bounds,
        now=facts.now,
        ttl=facts.ttl,
        first_reserved_at=lease.first_reserved_at,
    )
    if facts.cancel_asked_at is not None and facts.stop_at is not None:
        return min(expires_at, facts.stop_at)
    return expires_at


def _renewals_left(facts: RenewalFacts, lease: LeaseFacts) -> int:
    used = facts.renewals_used + lease.renewals_before + lease.renewal_count
    return facts.renewals_max - used


def _remaining(facts: RenewalFacts, lease: LeaseFacts) -> Remaining:
    return limits.remaining(
        facts.bounds,
        now=facts.now,
        renewals_left=_renewals_left(facts, lease),
        first_reserved_at=lease.first_reserved_at,
    )


def _after_one(left: Remaining) -> Remaining:
    return Remaining(
        lease_life=left.lease_life,
        reserved_time=left.reserved_time,
        renewals=left.renewals - 1,
        queue_age=left.queue_age,
    )
