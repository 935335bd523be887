"""What a loss leads to: evidence first, then a cancel request, then the bounds."""

from datetime import timedelta
from typing import Any

import pytest

from leaseq.rules.outcome import (
    LOSS_OUTCOMES,
    READMIT_ALWAYS,
    READMIT_BY_POLICY,
    Ended,
    NextAttempt,
    OutcomeUnknown,
    Readmit,
    cause_at_bound,
    decide_loss,
    decide_queue_expiry,
    decide_readmission,
)
from leaseq.rules.transitions import Refused
from leaseq.vocabulary import AttemptState, BoundHit, EndReason, JobState, TransitionRefusal

from .facts import HOUR, NOW, SECOND, TICK, a_loss, some_bounds

NO_LOSS = set(EndReason) - set(LOSS_OUTCOMES)
ALWAYS = sorted(READMIT_ALWAYS)
BY_POLICY = sorted(READMIT_BY_POLICY)
NEVER = sorted(set(LOSS_OUTCOMES) - READMIT_ALWAYS - READMIT_BY_POLICY)
EXPIRES = {EndReason.MAX_QUEUE_AGE, EndReason.HOLD_EXPIRED}


def test_every_reason_is_a_known_loss_or_is_refused_as_none() -> None:
    for cause in NO_LOSS:
        verdict = decide_loss(a_loss(cause=cause))
        assert verdict == Refused(reason=TransitionRefusal.NOT_A_LEGAL_MOVE)
    assert {*ALWAYS, *BY_POLICY, *NEVER} | NO_LOSS | {EndReason.MAX_ATTEMPTS} == set(EndReason)


@pytest.mark.parametrize("cause", ALWAYS)
def test_a_loss_within_bounds_opens_the_next_attempt_after_its_backoff(cause: EndReason) -> None:
    assert decide_loss(a_loss(cause=cause)) == NextAttempt(
        attempt_outcome=LOSS_OUTCOMES[cause], reason=cause, not_before=NOW + 5 * SECOND
    )


@pytest.mark.parametrize("cause", BY_POLICY)
def test_some_causes_open_the_next_attempt_only_where_policy_says_so(cause: EndReason) -> None:
    allowed = decide_loss(a_loss(cause=cause, readmit_by_policy=True))
    assert isinstance(allowed, NextAttempt)
    ended = decide_loss(a_loss(cause=cause))
    assert isinstance(ended, Ended)
    assert ended.job_state is JobState.FAILED
    assert ended.reason is cause
    assert ended.attempt_outcome is LOSS_OUTCOMES[cause]


@pytest.mark.parametrize("cause", NEVER)
def test_other_causes_end_the_job_whatever_policy_says(cause: EndReason) -> None:
    verdict = decide_loss(a_loss(cause=cause, readmit_by_policy=True))
    assert isinstance(verdict, Ended)
    assert verdict.job_state is (JobState.EXPIRED if cause in EXPIRES else JobState.FAILED)
    assert verdict.attempt_outcome is LOSS_OUTCOMES[cause]
    assert verdict.reason is cause


def test_a_task_error_is_no_dead_letter_and_a_bound_is_one_where_policy_says_so() -> None:
    error = decide_loss(a_loss(cause=EndReason.TASK_ERROR))
    bound = decide_loss(a_loss(cause=EndReason.MAX_RUN_TIME))
    failing = decide_loss(a_loss(cause=EndReason.MAX_RUN_TIME, on_bound=BoundHit.FAIL))
    assert isinstance(error, Ended)
    assert isinstance(bound, Ended)
    assert isinstance(failing, Ended)
    assert [error.dead_letter, bound.dead_letter, failing.dead_letter] == [False, True, False]


@pytest.mark.parametrize(
    "evidence",
    [
        {"possibly_sent": False},
        {"provider_terminal": True},
        {"ends_with_connection": True, "holder_stopped": True},
    ],
    ids=["never-sent", "provider-terminal", "connection-and-holder-gone"],
)
def test_evidence_closes_the_attempt(evidence: dict[str, Any]) -> None:
    assert isinstance(decide_loss(a_loss(**{"possibly_sent": True, **evidence})), NextAttempt)


@pytest.mark.parametrize(
    "short_of_it",
    [{}, {"ends_with_connection": True}, {"holder_stopped": True}, {"cancel_asked": True}],
    ids=["nothing", "holder-may-live", "work-may-outlive-it", "a-cancel-request"],
)
@pytest.mark.parametrize("state", [AttemptState.OPEN, AttemptState.OUTCOME_UNKNOWN])
def test_a_possibly_sent_attempt_is_unknown_and_opens_no_next_one(
    short_of_it: dict[str, Any], state: AttemptState
) -> None:
    verdict = decide_loss(a_loss(possibly_sent=True, attempt_state=state, **short_of_it))
    assert verdict == OutcomeUnknown(reason=EndReason.LEASE_EXPIRED)


@pytest.mark.parametrize("cancel_asked", [False, True])
def test_the_end_of_monitoring_ends_the_job_and_never_opens_a_next_attempt(
    *, cancel_asked: bool
) -> None:
    verdict = decide_loss(
        a_loss(
            cause=EndReason.MONITORING_ENDED,
            possibly_sent=True,
            attempt_state=AttemptState.OUTCOME_UNKNOWN,
            cancel_asked=cancel_asked,
            readmit_by_policy=True,
        )
    )
    assert verdict == Ended(
        job_state=JobState.CANCELLED if cancel_asked else JobState.FAILED,
        attempt_outcome=AttemptState.LOST,
        reason=EndReason.MONITORING_ENDED,
        dead_letter=not cancel_asked,
    )


@pytest.mark.parametrize("cause", sorted(LOSS_OUTCOMES))
def test_after_a_cancel_request_every_loss_with_evidence_ends_cancelled(cause: EndReason) -> None:
    assert decide_loss(a_loss(cause=cause, cancel_asked=True)) == Ended(
        job_state=JobState.CANCELLED,
        attempt_outcome=AttemptState.CANCELLED,
        reason=EndReason.CANCELLED,
        dead_letter=False,
    )


@pytest.mark.parametrize(
    ("counted", "goes_on"), [(2, True), (3, False), (4, False)], ids=["below", "at", "above"]
)
def test_attempts_are_bounded(counted: int, *, goes_on: bool) -> None:
    verdict = decide_loss(a_loss(attempts_counted=counted, attempts_max=3))
    if goes_on:
        assert isinstance(verdict, NextAttempt)
        return
    assert verdict == Ended(
        job_state=JobState.FAILED,
        attempt_outcome=AttemptState.LOST,
        reason=EndReason.MAX_ATTEMPTS,
        dead_letter=True,
    )


def test_an_attempt_that_never_had_capacity_is_named_after_its_reservation() -> None:
    verdict = decide_loss(a_loss(had_capacity=False, attempts_counted=0))
    assert isinstance(verdict, NextAttempt)
    assert verdict.attempt_outcome is AttemptState.RESERVATION_EXPIRED


JOB_WIDE: list[tuple[EndReason, JobState, dict[str, Any]]] = [
    (EndReason.MAX_QUEUE_AGE, JobState.EXPIRED, {"waiting_since": NOW - HOUR}),
    (
        EndReason.MAX_RESERVED_TIME,
        JobState.FAILED,
        {"reserved_at": NOW - HOUR, "reserved_time_max": HOUR},
    ),
    (
        EndReason.MAX_LEASE_LIFE,
        JobState.FAILED,
        {"first_reserved_at": NOW - HOUR, "lease_life_max": HOUR},
    ),
]


@pytest.mark.parametrize(("reason", "state", "bounds"), JOB_WIDE, ids=[row[0] for row in JOB_WIDE])
def test_a_job_wide_bound_is_never_readmitted(
    reason: EndReason, state: JobState, bounds: dict[str, Any]
) -> None:
    facts = {"bounds": some_bounds(**bounds), "readmit_by_policy": True}
    assert isinstance(decide_loss(a_loss(now=NOW - TICK, **facts)), NextAttempt)
    for now in (NOW, NOW + TICK):
        verdict = decide_loss(a_loss(now=now, **facts))
        assert isinstance(verdict, Ended)
        assert (verdict.job_state, verdict.reason) == (state, reason)
        assert verdict.dead_letter


@pytest.mark.parametrize(
    ("used", "goes_on"), [(HOUR - TICK, True), (HOUR, False), (HOUR + TICK, False)]
)
def test_a_loss_with_the_queue_time_used_up_expires_the_job(
    used: timedelta, *, goes_on: bool
) -> None:
    verdict = decide_loss(a_loss(bounds=some_bounds(queue_time_used=used)))
    assert isinstance(verdict, NextAttempt) is goes_on
    if isinstance(verdict, Ended):
        assert verdict.reason is EndReason.MAX_QUEUE_AGE


@pytest.mark.parametrize(("left", "goes_on"), [(1, True), (0, False), (-1, False)])
def test_a_loss_with_the_renewal_budget_spent_fails_the_job(left: int, *, goes_on: bool) -> None:
    verdict = decide_loss(a_loss(renewals_left=left))
    assert isinstance(verdict, NextAttempt) is goes_on
    if isinstance(verdict, Ended):
        assert verdict.reason is EndReason.MAX_RENEWALS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_state": JobState.COMPLETED}, TransitionRefusal.JOB_TERMINAL),
        ({"attempt_state": AttemptState.LOST}, TransitionRefusal.ATTEMPT_CLOSED),
    ],
)
def test_what_has_ended_is_not_lost_again(
    changes: dict[str, Any], reason: TransitionRefusal
) -> None:
    assert decide_loss(a_loss(**changes)) == Refused(reason=reason)


@pytest.mark.parametrize(
    ("job", "attempt", "verdict"),
    [
        (JobState.FAILED, AttemptState.LOST, Readmit()),
        (JobState.EXPIRED, AttemptState.EXPIRED, Readmit()),
        (
            JobState.FAILED,
            AttemptState.OUTCOME_UNKNOWN,
            Refused(reason=TransitionRefusal.OUTCOME_UNKNOWN),
        ),
        (
            JobState.COMPLETED,
            AttemptState.COMPLETED,
            Refused(reason=TransitionRefusal.JOB_TERMINAL),
        ),
        (
            JobState.CANCELLED,
            AttemptState.CANCELLED,
            Refused(reason=TransitionRefusal.JOB_TERMINAL),
        ),
        (
            JobState.RUNNING,
            AttemptState.OPEN,
            Refused(reason=TransitionRefusal.NOT_A_LEGAL_MOVE),
        ),
    ],
)
def test_an_operator_readmits_only_what_failed_or_expired_for_certain(
    job: JobState, attempt: AttemptState, verdict: Any
) -> None:
    assert decide_readmission(job_state=job, attempt_state=attempt) == verdict


SPENT = some_bounds(waiting_since=NOW - HOUR)


@pytest.mark.parametrize(
    ("shift", "due"),
    [(-TICK, False), (0 * TICK, True), (TICK, True)],
    ids=["before", "at", "after"],
)
def test_a_waiting_job_expires_at_its_queue_deadline(shift: Any, *, due: bool) -> None:
    verdict = decide_queue_expiry(
        now=NOW + shift,
        job_state=JobState.ADMITTED,
        bounds=SPENT,
        on_bound=BoundHit.DEAD_LETTER,
    )
    if not due:
        assert verdict == Refused(reason=TransitionRefusal.NOT_YET_DUE)
        return
    assert verdict == Ended(
        job_state=JobState.EXPIRED,
        attempt_outcome=AttemptState.EXPIRED,
        reason=EndReason.MAX_QUEUE_AGE,
        dead_letter=True,
    )


@pytest.mark.parametrize(
    ("state", "bounds", "reason"),
    [
        (JobState.EXPIRED, SPENT, TransitionRefusal.JOB_TERMINAL),
        (JobState.RUNNING, SPENT, TransitionRefusal.NOT_A_LEGAL_MOVE),
        (JobState.QUEUED, some_bounds(waiting_since=None), TransitionRefusal.NOT_A_LEGAL_MOVE),
    ],
    ids=["terminal", "executing", "paused"],
)
def test_only_a_waiting_job_expires_of_its_age(state: JobState, bounds: Any, reason: Any) -> None:
    verdict = decide_queue_expiry(now=NOW, job_state=state, bounds=bounds, on_bound=BoundHit.FAIL)
    assert verdict == Refused(reason=reason)


RUN_LIMIT = some_bounds(started_at=NOW - HOUR, run_time_max=HOUR + 5 * SECOND)


@pytest.mark.parametrize(
    ("cause", "left", "named"),
    [
        pytest.param(EndReason.HOLDER_STOPPED, 5 * SECOND, EndReason.MAX_RUN_TIME, id="stopped"),
        pytest.param(EndReason.WORKER_LOST, 5 * SECOND, EndReason.MAX_RUN_TIME, id="killed"),
        pytest.param(EndReason.LEASE_EXPIRED, 5 * SECOND, EndReason.MAX_RUN_TIME, id="expired"),
        pytest.param(
            EndReason.HOLDER_STOPPED, 5 * SECOND - TICK, EndReason.HOLDER_STOPPED, id="just-before"
        ),
        pytest.param(EndReason.TASK_ERROR, 5 * SECOND, EndReason.TASK_ERROR, id="an-error"),
        pytest.param(EndReason.WORKER_LOST, None, EndReason.WORKER_LOST, id="no-lease"),
    ],
)
def test_a_loss_of_a_lease_that_its_bound_cut_short_is_the_bound_s(
    cause: EndReason, left: timedelta | None, named: EndReason
) -> None:
    expires_at = None if left is None else NOW + left
    assert cause_at_bound(cause, bounds=RUN_LIMIT, expires_at=expires_at) is named


def test_an_error_is_named_as_it_is_also_with_every_budget_spent() -> None:
    ended = decide_loss(a_loss(cause=EndReason.TASK_ERROR, renewals_left=0))
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.TASK_ERROR
