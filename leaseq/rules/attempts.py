"""What may happen to the current attempt: reserve, claim, send, start, finish (SPEC A5, D6)."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from leaseq.rules import bounds as limits
from leaseq.rules.bounds import JobBounds
from leaseq.rules.ownership import LeaseFacts, OwnerProof, judge_ownership, lease_is_live
from leaseq.rules.transitions import Refused, check_job_move
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    EndReason,
    HoldState,
    JobState,
    TransitionRefusal,
    WorkerState,
)

_CANCELLED_AT_ONCE = frozenset({JobState.ADMITTED, JobState.RESERVED, JobState.QUEUED})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """A job and the attempt spoken of, as read under the row locks.

    `current_attempt_id` is the job's own; `changed_at` is the last recorded instant of the
    job or attempt, before which nothing may be recorded any more.
    """

    now: datetime
    job_state: JobState
    current_attempt_id: UUID
    attempt_id: UUID
    attempt_state: AttemptState
    cancel_asked_at: datetime | None
    possibly_sent: bool
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFacts:
    """The job's money as read under its lock; None for the instant: it does not expire."""

    state: HoldState
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByOwner:
    """The word of whoever shows this proof; judged against the lease it names."""

    proof: OwnerProof
    lease: LeaseFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByProvider:
    """The authoritative word of a provider about a request of this attempt (SPEC E7).

    `matches` says that job, attempt and provider request id are those recorded.
    """

    matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActFacts:
    """One act upon an attempt, and on whose word."""

    attempt: AttemptFacts
    word: ByOwner | ByProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFacts:
    """What a reservation is decided by; `permits_free` is counted under the pools' locks."""

    attempt: AttemptFacts
    not_before: datetime | None
    hold: HoldFacts | None
    permits_free: bool
    bounds: JobBounds
    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """What a claim is decided by.

    `permits` are the attempt's reservation; `slot_lease` is the slot's active lease row, if
    there is one, expired or not; `slot_owned` says that the slot belongs to this worker's
    incarnation.
    """

    attempt: AttemptFacts
    permits: tuple[LeaseFacts, ...]
    hold: HoldFacts | None
    queue_matches: bool
    worker_state: WorkerState
    slot_owned: bool
    slot_lease: LeaseFacts | None
    bounds: JobBounds
    ttl: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentFacts:
    """What the dispatch gate is decided by; `has_request` counts every request ever made."""

    attempt: AttemptFacts
    word: ByOwner
    hold: HoldFacts | None
    has_request: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Grant one permit of each pool until `expires_at`; the job becomes reserved."""

    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Write the broker message; the job becomes queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Grant the slot, transfer the permits; the attempt counts from here (SPEC B10, N1).

    `expire_first` names a dead lease of the slot to be ended in the same transaction (D2).
    """

    expires_at: datetime
    expire_first: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intend:
    """Record the request as prepared and the attempt as possibly sent, then send (E3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """The job becomes provider_accepted at this instant."""

    accepted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The job becomes running at this instant."""

    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress was made at this instant."""

    progress_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Job and attempt end so; leases are released in the same transaction."""

    job_state: JobState
    attempt_state: AttemptState
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The word counts: ask `outcome.decide_loss` what becomes of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelNow:
    """Nothing runs: the job and its attempt end cancelled in this transaction (SPEC E8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCancel:
    """Record the request; the owner or the provider has the last word (SPEC E8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyAsked:
    """A cancellation was asked for before: write nothing."""


def decide_reserve(facts: ReserveFacts) -> Reserve | Refused:
    """Say whether the waiting job gets its permits now (SPEC A4)."""
    attempt = facts.attempt
    reason = _judge_attempt(attempt) or check_job_move(attempt.job_state, JobState.RESERVED)
    reason = reason or _judge_eligible(attempt, bounds=facts.bounds, hold=facts.hold)
    if reason is not None:
        return Refused(reason=reason)
    if facts.not_before is not None and attempt.now < facts.not_before:
        return Refused(reason=TransitionRefusal.NOT_YET_DUE)
    if not facts.permits_free:
        return Refused(reason=TransitionRefusal.NO_PERMIT_FREE)
    expires_at = limits.capped_expiry(facts.bounds, now=attempt.now, ttl=facts.ttl)
    return Reserve(expires_at=expires_at)


def decide_queue(attempt: AttemptFacts) -> Queue | Refused:
    """Say whether the reserved job's message may be written (SPEC D5)."""
    reason = _judge_attempt(attempt) or check_job_move(attempt.job_state, JobState.QUEUED)
    if reason is None and attempt.cancel_asked_at is not None:
        reason = TransitionRefusal.CANCEL_ASKED
    return Queue() if reason is None else Refused(reason=reason)


def decide_claim(facts: ClaimFacts) -> Claim | Refused:
    """Say whether the worker that got a message may run this attempt (SPEC D6, B10).

    A message delivered twice finds the job no longer queued; one of an earlier attempt finds
    another attempt. A slot whose active lease still lives is never granted over; a dead one
    is ended first.
    """
    attempt = facts.attempt
    reason = _judge_attempt(attempt)
    if reason is None and attempt.job_state is not JobState.QUEUED:
        reason = TransitionRefusal.NOT_QUEUED
    reason = reason or _judge_eligible(attempt, bounds=facts.bounds, hold=facts.hold)
    reason = reason or _judge_place(facts)
    if reason is not None:
        return Refused(reason=reason)
    # The queue clock stops at the claim, so it does not bound the lease that follows (SPEC M7).
    claimed = replace(facts.bounds, waiting_since=None)
    return Claim(
        expires_at=limits.capped_expiry(claimed, now=attempt.now, ttl=facts.ttl),
        expire_first=None if facts.slot_lease is None else facts.slot_lease.lease_id,
    )


def decide_intent(facts: IntentFacts) -> Intend | Refused:
    """Say whether this attempt may be sent to a provider: the dispatch gate (SPEC L4, E3).

    Each attempt passes once; whether the first sending arrived makes no difference.
    """
    attempt = facts.attempt
    reason = _judge_word(attempt, facts.word) or _judge_attempt(attempt)
    if reason is None and attempt.cancel_asked_at is not None:
        reason = TransitionRefusal.CANCEL_ASKED
    if reason is None and (attempt.possibly_sent or facts.has_request):
        reason = TransitionRefusal.ALREADY_DISPATCHED
    if reason is None and attempt.job_state is not JobState.DISPATCHING:
        reason = TransitionRefusal.NOT_A_LEGAL_MOVE
    reason = reason or _judge_hold(facts.hold, now=attempt.now)
    return Intend() if reason is None else Refused(reason=reason)


def decide_accept(facts: ActFacts) -> Accept | Refused:
    """Say whether acceptance is recorded; a cancel request does not undo the fact (E2)."""
    reason = _judge_act(facts, JobState.PROVIDER_ACCEPTED)
    if reason is not None:
        return Refused(reason=reason)
    return Accept(accepted_at=facts.attempt.now)


def decide_start(facts: ActFacts) -> Start | Refused:
    """Say whether compute start is recorded; acceptance must stand before it (E2)."""
    reason = _judge_act(facts, JobState.RUNNING)
    if reason is not None:
        return Refused(reason=reason)
    return Start(started_at=facts.attempt.now)


def decide_progress(facts: ActFacts) -> Progress | Refused:
    """Say whether progress is recorded: only of a running job (SPEC B6)."""
    reason = _judge_actor(facts)
    if reason is None and facts.attempt.job_state is not JobState.RUNNING:
        reason = TransitionRefusal.NOT_A_LEGAL_MOVE
    if reason is not None:
        return Refused(reason=reason)
    return Progress(progress_at=facts.attempt.now)


def decide_complete(facts: ActFacts, *, keep_result: bool) -> Complete | Refused:
    """Say how a job whose attempt completed ends (SPEC M1).

    After a cancel request the job ends cancelled all the same, unless its policy keeps the
    result.
    """
    reason = _judge_act(facts, JobState.COMPLETED)
    if reason is not None:
        return Refused(reason=reason)
    if facts.attempt.cancel_asked_at is not None and not keep_result:
        return Complete(
            job_state=JobState.CANCELLED,
            attempt_state=AttemptState.COMPLETED_AFTER_CANCEL,
            reason=EndReason.CANCELLED,
        )
    return Complete(
        job_state=JobState.COMPLETED,
        attempt_state=AttemptState.COMPLETED,
        reason=EndReason.COMPLETED,
    )


def decide_fail(facts: ActFacts) -> Fail | Refused:
    """Say whether the word that an attempt ended without a result counts."""
    reason = _judge_actor(facts)
    return Fail() if reason is None else Refused(reason=reason)


def decide_cancel_request(attempt: AttemptFacts) -> CancelNow | AskCancel | AlreadyAsked | Refused:
    """Say what a cancel request does: end the job now, or only ask (SPEC E8, M1)."""
    if attempt.job_state in TERMINAL_JOB_STATES:
        return Refused(reason=TransitionRefusal.JOB_TERMINAL)
    if attempt.now < attempt.changed_at:
        return Refused(reason=TransitionRefusal.OUT_OF_ORDER)
    if attempt.job_state in _CANCELLED_AT_ONCE and not attempt.possibly_sent:
        return CancelNow()
    return AskCancel() if attempt.cancel_asked_at is None else AlreadyAsked()


def _judge_attempt(attempt: AttemptFacts) -> TransitionRefusal | None:
    if attempt.job_state in TERMINAL_JOB_STATES:
        return TransitionRefusal.JOB_TERMINAL
    if attempt.attempt_id != attempt.current_attempt_id:
        return TransitionRefusal.NOT_THE_CURRENT_ATTEMPT
    if attempt.attempt_state not in UNCLOSED_ATTEMPT_STATES:
        return TransitionRefusal.ATTEMPT_CLOSED
    if attempt.attempt_state is AttemptState.OUTCOME_UNKNOWN:
        return TransitionRefusal.OUTCOME_UNKNOWN
    if attempt.now < attempt.changed_at:
        return TransitionRefusal.OUT_OF_ORDER
    return None


def _judge_eligible(
    attempt: AttemptFacts, *, bounds: JobBounds, hold: HoldFacts | None
) -> TransitionRefusal | None:
    if attempt.cancel_asked_at is not None:
        return TransitionRefusal.CANCEL_ASKED
    queue_ends_at = limits.queue_deadline(bounds)
    if queue_ends_at is not None and queue_ends_at <= attempt.now:
        return TransitionRefusal.QUEUE_AGE_SPENT
    return _judge_hold(hold, now=attempt.now)


def _judge_hold(hold: HoldFacts | None, *, now: datetime) -> TransitionRefusal | None:
    if hold is None:
        return None
    if hold.state is not HoldState.HELD:
        return TransitionRefusal.HOLD_NOT_OPEN
    if hold.expires_at is not None and hold.expires_at <= now:
        return TransitionRefusal.HOLD_EXPIRED
    return None


def _judge_place(facts: ClaimFacts) -> TransitionRefusal | None:
    now = facts.attempt.now
    if not all(lease_is_live(permit, now=now) for permit in facts.permits):
        return TransitionRefusal.RESERVATION_EXPIRED
    if not facts.queue_matches:
        return TransitionRefusal.WRONG_QUEUE
    if facts.worker_state is not WorkerState.LIVE:
        return TransitionRefusal.WORKER_NOT_LIVE
    if not facts.slot_owned:
        return TransitionRefusal.SLOT_NOT_OURS
    if facts.slot_lease is not None and lease_is_live(facts.slot_lease, now=now):
        return TransitionRefusal.NO_FREE_SLOT
    return None


def _judge_word(attempt: AttemptFacts, word: ByOwner | ByProvider) -> TransitionRefusal | None:
    if isinstance(word, ByOwner):
        if word.proof.attempt_id != attempt.attempt_id:
            return TransitionRefusal.NOT_THE_CURRENT_ATTEMPT
        return judge_ownership(word.proof, word.lease, now=attempt.now)
    if not word.matches:
        return TransitionRefusal.NOT_THE_CURRENT_ATTEMPT
    # A provider cannot speak of what was never sent (PROMISES J8).
    return None if attempt.possibly_sent else TransitionRefusal.OUT_OF_ORDER


def _judge_actor(facts: ActFacts) -> TransitionRefusal | None:
    reason = _judge_word(facts.attempt, facts.word) or _judge_attempt(facts.attempt)
    # A provider's word is the very verdict that an unknown outcome waits for.
    if reason is TransitionRefusal.OUTCOME_UNKNOWN and isinstance(facts.word, ByProvider):
        in_order = facts.attempt.now >= facts.attempt.changed_at
        return None if in_order else TransitionRefusal.OUT_OF_ORDER
    return reason


def _judge_act(facts: ActFacts, after: JobState) -> TransitionRefusal | None:
    return _judge_actor(facts) or check_job_move(facts.attempt.job_state, after)
