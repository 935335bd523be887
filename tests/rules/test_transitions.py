"""The move tables against SPEC A1 and section 0, cell by cell where it matters."""

from typing import Any

import pytest

from leaseq.rules import transitions as moves
from leaseq.rules.ownership import Fence, judge_ownership
from leaseq.vocabulary import (
    OPEN_REQUEST_STATES,
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
    RequestState,
    TransitionRefusal,
)

from .facts import NOW, OTHER_ATTEMPT_ID, OTHER_LEASE_ID, TICK, a_lease, a_proof

Reason = TransitionRefusal
PATH = [
    JobState.ADMITTED,
    JobState.RESERVED,
    JobState.QUEUED,
    JobState.DISPATCHING,
    JobState.PROVIDER_ACCEPTED,
    JobState.RUNNING,
    JobState.COMPLETED,
]


def test_a_job_goes_forward_one_step_back_to_admitted_or_to_an_end_and_nowhere_else() -> None:
    for before in JobState:
        expected: set[JobState] = set()
        if before not in TERMINAL_JOB_STATES:
            expected = {PATH[PATH.index(before) + 1]}
            expected |= {JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED}
            expected |= {JobState.ADMITTED} - {before}
        assert {after for after in JobState if moves.job_move_is_legal(before, after)} == expected


def test_only_failed_and_expired_jobs_are_readmitted_and_only_explicitly() -> None:
    readmitted = {state for state in JobState if moves.readmission_is_legal(state)}
    assert readmitted == {JobState.FAILED, JobState.EXPIRED}
    assert moves.check_readmission(JobState.FAILED) is None
    assert moves.check_readmission(JobState.CANCELLED) is Reason.JOB_TERMINAL
    assert moves.check_readmission(JobState.QUEUED) is Reason.NOT_A_LEGAL_MOVE
    assert moves.check_job_move(JobState.FAILED, JobState.ADMITTED) is Reason.JOB_TERMINAL


def test_an_attempt_closes_once_and_never_reopens() -> None:
    closed = set(AttemptState) - UNCLOSED_ATTEMPT_STATES
    for after in AttemptState:
        from_open = moves.attempt_move_is_legal(AttemptState.OPEN, after)
        assert from_open is (after is not AttemptState.OPEN)
        from_unknown = moves.attempt_move_is_legal(AttemptState.OUTCOME_UNKNOWN, after)
        assert from_unknown is (after in closed)
        for before in closed:
            assert moves.check_attempt_move(before, after) is Reason.ATTEMPT_CLOSED


def test_a_request_only_learns_and_never_leaves_an_end() -> None:
    for before in RequestState:
        assert not moves.request_move_is_legal(before, before)
        assert not moves.request_move_is_legal(before, RequestState.PREPARED)
        if before not in OPEN_REQUEST_STATES:
            assert before not in moves.REQUEST_MOVES
        if before is not RequestState.PREPARED:
            assert not moves.request_move_is_legal(before, RequestState.UNKNOWN)


@pytest.mark.parametrize(
    ("check", "before", "after", "reason"),
    [
        (moves.check_job_move, JobState.QUEUED, JobState.DISPATCHING, None),
        (moves.check_job_move, JobState.QUEUED, JobState.RUNNING, Reason.NOT_A_LEGAL_MOVE),
        (
            moves.check_job_move,
            JobState.PROVIDER_ACCEPTED,
            JobState.COMPLETED,
            Reason.NOT_A_LEGAL_MOVE,
        ),
        (moves.check_job_move, JobState.COMPLETED, JobState.CANCELLED, Reason.JOB_TERMINAL),
        (moves.check_attempt_move, AttemptState.OPEN, AttemptState.LOST, None),
        (
            moves.check_attempt_move,
            AttemptState.OUTCOME_UNKNOWN,
            AttemptState.OPEN,
            Reason.NOT_A_LEGAL_MOVE,
        ),
        (moves.check_lease_move, LeaseStatus.ACTIVE, LeaseStatus.EXPIRED, None),
        (
            moves.check_lease_move,
            LeaseStatus.ACTIVE,
            LeaseStatus.ACTIVE,
            Reason.NOT_A_LEGAL_MOVE,
        ),
        (
            moves.check_lease_move,
            LeaseStatus.EXPIRED,
            LeaseStatus.RELEASED,
            Reason.LEASE_ENDED,
        ),
        (moves.check_hold_move, HoldState.HELD, HoldState.SETTLED, None),
        (moves.check_hold_move, HoldState.HELD, HoldState.REVERSED, Reason.NOT_A_LEGAL_MOVE),
        (moves.check_hold_move, HoldState.SETTLED, HoldState.REVERSED, None),
        (moves.check_hold_move, HoldState.SETTLED, HoldState.SETTLED, Reason.HOLD_NOT_OPEN),
        (moves.check_hold_move, HoldState.RELEASED, HoldState.HELD, Reason.HOLD_NOT_OPEN),
        (moves.check_request_move, RequestState.UNKNOWN, RequestState.RUNNING, None),
        (
            moves.check_request_move,
            RequestState.RUNNING,
            RequestState.ACCEPTED,
            Reason.NOT_A_LEGAL_MOVE,
        ),
        (moves.check_sent_move, False, True, None),
        (moves.check_sent_move, True, True, None),
        (moves.check_sent_move, True, False, Reason.SENT_IS_STICKY),
    ],
)
def test_a_refused_move_names_why(check: Any, before: Any, after: Any, reason: Any) -> None:
    assert check(before, after) is reason


def test_fences_grow_by_epoch_first() -> None:
    assert Fence(epoch=1, counter=9) < Fence(epoch=2, counter=1) < Fence(epoch=2, counter=2)


@pytest.mark.parametrize(
    ("proof", "lease", "reason"),
    [
        (a_proof(), a_lease(), None),
        (a_proof(), None, Reason.STALE_OWNER),
        (a_proof(lease_id=OTHER_LEASE_ID), a_lease(), Reason.STALE_OWNER),
        (a_proof(fence=Fence(epoch=1, counter=8)), a_lease(), Reason.STALE_OWNER),
        (
            a_proof(attempt_id=OTHER_ATTEMPT_ID),
            a_lease(status=LeaseStatus.EXPIRED),
            Reason.NOT_THE_CURRENT_ATTEMPT,
        ),
        (
            a_proof(),
            a_lease(status=LeaseStatus.TRANSFERRED, expires_at=NOW),
            Reason.LEASE_ENDED,
        ),
        (a_proof(), a_lease(expires_at=NOW + TICK), None),
        (a_proof(), a_lease(expires_at=NOW), Reason.LEASE_EXPIRED),
        (a_proof(), a_lease(expires_at=NOW - TICK), Reason.LEASE_EXPIRED),
    ],
    ids=[
        "owner",
        "no-lease",
        "other-lease",
        "stale-fence",
        "other-attempt",
        "ended",
        "just-before-expiry",
        "at-expiry",
        "after-expiry",
    ],
)
def test_ownership_is_judged_identity_first(proof: Any, lease: Any, reason: Any) -> None:
    assert judge_ownership(proof, lease, now=NOW) is reason
