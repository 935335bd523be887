"""What becomes of a job whose attempt ended without a result, or whose time is up (SPEC B7, B9)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from leaseq.rules import bounds as limits
from leaseq.rules.bounds import JobBounds
from leaseq.rules.transitions import Refused, check_readmission
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    BoundHit,
    EndReason,
    JobState,
    TransitionRefusal,
)

LOSS_OUTCOMES: Final[Mapping[EndReason, AttemptState]] = {
    EndReason.LEASE_EXPIRED: AttemptState.LOST,
    EndReason.WORKER_LOST: AttemptState.LOST,
    EndReason.WORKER_SHUTDOWN: AttemptState.LOST,
    EndReason.HOLDER_STOPPED: AttemptState.LOST,
    EndReason.REVOKED_BY_OPERATOR: AttemptState.LOST,
    EndReason.PROVIDER_UNKNOWN: AttemptState.LOST,
    EndReason.MONITORING_ENDED: AttemptState.LOST,
    EndReason.RESERVATION_EXPIRED: AttemptState.RESERVATION_EXPIRED,
    EndReason.TASK_ERROR: AttemptState.FAILED,
    EndReason.TASK_RETRY: AttemptState.FAILED,
    EndReason.RESULT_NOT_JSON: AttemptState.FAILED,
    EndReason.RESULT_TOO_LARGE: AttemptState.FAILED,
    EndReason.PROVIDER_FAILED: AttemptState.FAILED,
    EndReason.PROVIDER_REJECTED: AttemptState.REJECTED,
    EndReason.CANCELLED: AttemptState.CANCELLED,
    EndReason.HOLD_EXPIRED: AttemptState.EXPIRED,
    EndReason.MAX_QUEUE_AGE: AttemptState.EXPIRED,
    EndReason.MAX_LEASE_LIFE: AttemptState.EXPIRED,
    EndReason.MAX_RESERVED_TIME: AttemptState.EXPIRED,
    EndReason.MAX_RENEWALS: AttemptState.EXPIRED,
    EndReason.MAX_RUN_TIME: AttemptState.EXPIRED,
    EndReason.MAX_PROVIDER_WAIT: AttemptState.EXPIRED,
    EndReason.STALLED: AttemptState.EXPIRED,
}
"""The outcome that each cause of a loss gives its attempt; other reasons are no loss."""

READMIT_ALWAYS: Final = frozenset(
    {
        EndReason.LEASE_EXPIRED,
        EndReason.WORKER_LOST,
        EndReason.WORKER_SHUTDOWN,
        EndReason.HOLDER_STOPPED,
        EndReason.REVOKED_BY_OPERATOR,
        EndReason.PROVIDER_UNKNOWN,
        EndReason.RESERVATION_EXPIRED,
        EndReason.TASK_RETRY,
    }
)
READMIT_BY_POLICY: Final = frozenset(
    {
        EndReason.PROVIDER_REJECTED,
        EndReason.PROVIDER_FAILED,
        EndReason.MAX_LEASE_LIFE,
        EndReason.MAX_RUN_TIME,
        EndReason.MAX_PROVIDER_WAIT,
        EndReason.STALLED,
    }
)
_SILENT: Final = frozenset(
    {EndReason.LEASE_EXPIRED, EndReason.WORKER_LOST, EndReason.HOLDER_STOPPED}
)
_JOB_WIDE: Final = frozenset(
    {EndReason.MAX_QUEUE_AGE, EndReason.MAX_RESERVED_TIME, EndReason.MAX_RENEWALS}
)
_EXPIRES_JOB: Final = frozenset({EndReason.MAX_QUEUE_AGE, EndReason.HOLD_EXPIRED})
_IS_BOUND: Final = _JOB_WIDE | {
    EndReason.MAX_LEASE_LIFE,
    EndReason.MAX_ATTEMPTS,
    EndReason.MAX_RUN_TIME,
    EndReason.MAX_PROVIDER_WAIT,
    EndReason.STALLED,
    EndReason.MONITORING_ENDED,
}
_WAITING: Final = frozenset({JobState.ADMITTED, JobState.RESERVED, JobState.QUEUED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """What the end of an attempt is decided by, read under the row locks.

    `attempts_counted` are the job's attempts that ever got capacity, this one included where
    `had_capacity` (SPEC N1). `provider_terminal` says that the provider reported an end,
    refused the request or acknowledged its tombstone. `ends_with_connection` says that the
    work cannot outlive its holder, and `holder_stopped` that this holder is fenced and known
    dead or hard-stopped (SPEC L5a). `retry_delay` is the wait before a next attempt, jitter
    included.
    """

    now: datetime
    job_state: JobState
    attempt_state: AttemptState
    cause: EndReason
    had_capacity: bool
    attempts_counted: int
    attempts_max: int
    possibly_sent: bool
    provider_terminal: bool
    ends_with_connection: bool
    holder_stopped: bool
    cancel_asked: bool
    readmit_by_policy: bool
    renewals_left: int
    on_bound: BoundHit
    bounds: JobBounds
    retry_delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """Close the attempt so, open the next; the job is admitted with its old age (M6).

    The hold stays (SPEC N4).
    """

    attempt_outcome: AttemptState
    reason: EndReason
    not_before: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeUnknown:
    """End the leases, mark the attempt outcome_unknown; the job keeps its state (SPEC B9)."""

    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Job and attempt end so; the hold is closed by verdict (SPEC L7)."""

    job_state: JobState
    attempt_outcome: AttemptState
    reason: EndReason
    dead_letter: bool


LossVerdict = NextAttempt | OutcomeUnknown | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmit:
    """Open a new attempt of the same job, with who and why (SPEC A1)."""


def cause_at_bound(
    cause: EndReason, *, bounds: JobBounds, expires_at: datetime | None
) -> EndReason:
    """Name the bound behind a loss whose lease could not have been renewed any further (B7).

    An owner stops at its own deadline, a little before the authority's, so the bound has not
    passed yet when the loss is reported; that the lease ended with it tells.
    """
    if cause not in _SILENT or expires_at is None:
        return cause
    bound = limits.hard_deadline(bounds)
    return cause if bound is None or expires_at < bound.at else bound.reason


def is_closed_by_evidence(facts: LossFacts) -> bool:
    """Say whether nothing of the attempt can still run or cost (SPEC L5a)."""
    if not facts.possibly_sent or facts.provider_terminal:
        return True
    return facts.ends_with_connection and facts.holder_stopped


def decide_loss(facts: LossFacts) -> LossVerdict | Refused:
    """Say what becomes of the job whose attempt ended without a result.

    Evidence comes first: while something may still run, no next attempt opens. Then a cancel
    request ends the job. Then the bounds; the job-wide ones never re-admit (SPEC B7).
    """
    outcome = LOSS_OUTCOMES.get(facts.cause)
    reason = _judge_loss(facts, outcome)
    if reason is not None or outcome is None:
        return Refused(reason=reason or TransitionRefusal.NOT_A_LEGAL_MOVE)
    if not is_closed_by_evidence(facts):
        return _decide_without_evidence(facts)
    if facts.cancel_asked:
        return Ended(
            job_state=JobState.CANCELLED,
            attempt_outcome=AttemptState.CANCELLED,
            reason=EndReason.CANCELLED,
            dead_letter=False,
        )
    if outcome is AttemptState.LOST and not facts.had_capacity:
        outcome = AttemptState.RESERVATION_EXPIRED
    ended_by = _ended_by(facts)
    if ended_by is not None:
        return _end(facts, outcome=outcome, reason=ended_by)
    return NextAttempt(
        attempt_outcome=outcome,
        reason=facts.cause,
        not_before=facts.now + facts.retry_delay,
    )


def decide_queue_expiry(
    *, now: datetime, job_state: JobState, bounds: JobBounds, on_bound: BoundHit
) -> Ended | Refused:
    """Say whether a job has waited too long: it expires at its queue deadline (SPEC M7)."""
    if job_state in TERMINAL_JOB_STATES:
        return Refused(reason=TransitionRefusal.JOB_TERMINAL)
    deadline = limits.queue_deadline(bounds)
    if job_state not in _WAITING or deadline is None:
        return Refused(reason=TransitionRefusal.NOT_A_LEGAL_MOVE)
    if now < deadline:
        return Refused(reason=TransitionRefusal.NOT_YET_DUE)
    return Ended(
        job_state=JobState.EXPIRED,
        attempt_outcome=AttemptState.EXPIRED,
        reason=EndReason.MAX_QUEUE_AGE,
        dead_letter=on_bound is BoundHit.DEAD_LETTER,
    )


def decide_readmission(*, job_state: JobState, attempt_state: AttemptState) -> Readmit | Refused:
    """Say whether an operator may re-admit the job; an unknown outcome forbids it (L5)."""
    reason = check_readmission(job_state)
    if reason is None and attempt_state in UNCLOSED_ATTEMPT_STATES:
        reason = TransitionRefusal.OUTCOME_UNKNOWN
    return Readmit() if reason is None else Refused(reason=reason)


def _judge_loss(facts: LossFacts, outcome: AttemptState | None) -> TransitionRefusal | None:
    if facts.job_state in TERMINAL_JOB_STATES:
        return TransitionRefusal.JOB_TERMINAL
    if facts.attempt_state not in UNCLOSED_ATTEMPT_STATES:
        return TransitionRefusal.ATTEMPT_CLOSED
    return TransitionRefusal.NOT_A_LEGAL_MOVE if outcome is None else None


def _decide_without_evidence(facts: LossFacts) -> OutcomeUnknown | Ended:
    if facts.cause is not EndReason.MONITORING_ENDED:
        return OutcomeUnknown(reason=facts.cause)
    # Policy gave up following: the job ends, and never by a new attempt of its own accord.
    if facts.cancel_asked:
        return Ended(
            job_state=JobState.CANCELLED,
            attempt_outcome=AttemptState.LOST,
            reason=EndReason.MONITORING_ENDED,
            dead_letter=False,
        )
    return _end(facts, outcome=AttemptState.LOST, reason=EndReason.MONITORING_ENDED)


def _ended_by(facts: LossFacts) -> EndReason | None:
    by_policy = facts.readmit_by_policy and facts.cause in READMIT_BY_POLICY
    if facts.cause not in READMIT_ALWAYS and not by_policy:
        return facts.cause
    bounds, now = facts.bounds, facts.now
    job_wide = (
        (limits.queue_deadline(bounds), EndReason.MAX_QUEUE_AGE),
        (limits.reserved_time_deadline(bounds), EndReason.MAX_RESERVED_TIME),
        (limits.lease_life_deadline(bounds), EndReason.MAX_LEASE_LIFE),
    )
    for deadline, reason in job_wide:
        if deadline is not None and deadline <= now:
            return reason
    if bounds.queue_age_max <= bounds.queue_time_used:
        return EndReason.MAX_QUEUE_AGE
    if facts.renewals_left <= 0:
        return EndReason.MAX_RENEWALS
    if facts.attempts_counted >= facts.attempts_max:
        return EndReason.MAX_ATTEMPTS
    return None


def _end(facts: LossFacts, *, outcome: AttemptState, reason: EndReason) -> Ended:
    expires = reason in _EXPIRES_JOB
    return Ended(
        job_state=JobState.EXPIRED if expires else JobState.FAILED,
        attempt_outcome=outcome,
        reason=reason,
        dead_letter=reason in _IS_BOUND and facts.on_bound is BoundHit.DEAD_LETTER,
    )
