"""The legal moves of job, attempt, lease, hold and request, as data (SPEC A1, A5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
    RequestState,
    TransitionRefusal,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The change is not made, for one named reason; nothing else follows from it."""

    reason: TransitionRefusal


_ENDINGS: Final = frozenset({JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED})
_BACK: Final = frozenset({JobState.ADMITTED})

JOB_MOVES: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.ADMITTED: _ENDINGS | {JobState.RESERVED},
    JobState.RESERVED: _ENDINGS | _BACK | {JobState.QUEUED},
    JobState.QUEUED: _ENDINGS | _BACK | {JobState.DISPATCHING},
    JobState.DISPATCHING: _ENDINGS | _BACK | {JobState.PROVIDER_ACCEPTED},
    JobState.PROVIDER_ACCEPTED: _ENDINGS | _BACK | {JobState.RUNNING},
    JobState.RUNNING: _ENDINGS | _BACK | {JobState.COMPLETED},
    JobState.COMPLETED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
    JobState.FAILED: frozenset(),
}
"""What the system does by itself; a move back to admitted opens a new attempt."""

READMISSION_MOVES: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.FAILED: _BACK,
    JobState.EXPIRED: _BACK,
}
"""What only an explicit re-admission does, with who and why."""

ATTEMPT_MOVES: Final[Mapping[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.OPEN: frozenset(AttemptState) - {AttemptState.OPEN},
    AttemptState.OUTCOME_UNKNOWN: frozenset(AttemptState) - UNCLOSED_ATTEMPT_STATES,
}

LEASE_MOVES: Final[Mapping[LeaseStatus, frozenset[LeaseStatus]]] = {
    LeaseStatus.ACTIVE: frozenset(LeaseStatus) - {LeaseStatus.ACTIVE},
}

HOLD_MOVES: Final[Mapping[HoldState, frozenset[HoldState]]] = {
    HoldState.HELD: frozenset({HoldState.SETTLED, HoldState.RELEASED, HoldState.EXPIRED}),
    HoldState.SETTLED: frozenset({HoldState.REVERSED}),
}

_REQUEST_ENDS: Final = frozenset(
    {
        RequestState.SUCCEEDED,
        RequestState.FAILED,
        RequestState.CANCELLED,
        RequestState.ABORTED,
        RequestState.EXPIRED,
        RequestState.MONITORING_ENDED,
    }
)
REQUEST_MOVES: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    RequestState.PREPARED: (_REQUEST_ENDS - {RequestState.MONITORING_ENDED})
    | {
        RequestState.UNKNOWN,
        RequestState.ACCEPTED,
        RequestState.RUNNING,
        RequestState.REJECTED,
    },
    RequestState.UNKNOWN: _REQUEST_ENDS
    | {
        RequestState.ACCEPTED,
        RequestState.RUNNING,
        RequestState.CANCELLING,
        RequestState.REJECTED,
    },
    RequestState.ACCEPTED: _REQUEST_ENDS | {RequestState.RUNNING, RequestState.CANCELLING},
    RequestState.RUNNING: _REQUEST_ENDS | {RequestState.CANCELLING},
    RequestState.CANCELLING: _REQUEST_ENDS | {RequestState.REJECTED},
}
"""Knowledge only grows: nothing goes back to unknown, and nothing leaves an end."""


def job_move_is_legal(before: JobState, after: JobState) -> bool:
    """Say whether the system may make this move by itself (SPEC A1)."""
    return after in JOB_MOVES[before]


def readmission_is_legal(before: JobState) -> bool:
    """Say whether an explicit re-admission may take a job out of this state (SPEC A1)."""
    return JobState.ADMITTED in READMISSION_MOVES.get(before, frozenset())


def attempt_move_is_legal(before: AttemptState, after: AttemptState) -> bool:
    """Say whether an attempt may take this outcome; a closed one takes none (SPEC 0)."""
    return after in ATTEMPT_MOVES.get(before, frozenset())


def lease_move_is_legal(before: LeaseStatus, after: LeaseStatus) -> bool:
    """Say whether a lease may end this way; it ends once (SPEC 0)."""
    return after in LEASE_MOVES.get(before, frozenset())


def hold_move_is_legal(before: HoldState, after: HoldState) -> bool:
    """Say whether a hold may take this state (SPEC F2)."""
    return after in HOLD_MOVES.get(before, frozenset())


def request_move_is_legal(before: RequestState, after: RequestState) -> bool:
    """Say whether a request's recorded state may become this one (SPEC 0, E6)."""
    return after in REQUEST_MOVES.get(before, frozenset())


def check_job_move(before: JobState, after: JobState) -> TransitionRefusal | None:
    """Name why the job may not move so, or return None where it may."""
    if job_move_is_legal(before, after):
        return None
    if before in TERMINAL_JOB_STATES:
        return TransitionRefusal.JOB_TERMINAL
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_readmission(before: JobState) -> TransitionRefusal | None:
    """Name why an operator may not re-admit a job from this state, or return None."""
    if readmission_is_legal(before):
        return None
    if before in TERMINAL_JOB_STATES:
        return TransitionRefusal.JOB_TERMINAL
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_attempt_move(before: AttemptState, after: AttemptState) -> TransitionRefusal | None:
    """Name why the attempt may not move so, or return None where it may."""
    if attempt_move_is_legal(before, after):
        return None
    if before not in UNCLOSED_ATTEMPT_STATES:
        return TransitionRefusal.ATTEMPT_CLOSED
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_lease_move(before: LeaseStatus, after: LeaseStatus) -> TransitionRefusal | None:
    """Name why the lease may not end so, or return None where it may."""
    if lease_move_is_legal(before, after):
        return None
    if before is not LeaseStatus.ACTIVE:
        return TransitionRefusal.LEASE_ENDED
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_hold_move(before: HoldState, after: HoldState) -> TransitionRefusal | None:
    """Name why the hold may not move so, or return None where it may."""
    if hold_move_is_legal(before, after):
        return None
    if before is not HoldState.HELD:
        return TransitionRefusal.HOLD_NOT_OPEN
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_request_move(before: RequestState, after: RequestState) -> TransitionRefusal | None:
    """Name why the request may not move so, or return None where it may."""
    if request_move_is_legal(before, after):
        return None
    return TransitionRefusal.NOT_A_LEGAL_MOVE


def check_sent_move(before: bool, after: bool) -> TransitionRefusal | None:  # noqa: FBT001
    """Refuse to take "possibly sent" back: it never returns to false (SPEC L5)."""
    if before and not after:
        return TransitionRefusal.SENT_IS_STICKY
    return None
