"""Every cause of B4 has a row; each bound has three; no renewal passes a hard deadline."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseq.rules import bounds as limits
from leaseq.rules.ownership import Fence
from leaseq.rules.renewal import (
    AlreadyRenewed,
    Refused,
    RenewalFacts,
    Renewed,
    Stage,
    decide_renewal,
)
from leaseq.vocabulary import AttemptState, JobState, LeaseStatus, RenewalRefusal

from .facts import (
    HOUR,
    LEASE_ID,
    NOW,
    OTHER_ATTEMPT_ID,
    OTHER_LEASE_ID,
    SECOND,
    TICK,
    TTL,
    a_lease,
    a_proof,
    a_renewal,
    some_bounds,
)

Reason = RenewalRefusal

# One row per cause: everything else in the facts would have let the renewal pass.
CAUSES: list[tuple[RenewalRefusal, dict[str, Any]]] = [
    (Reason.UNKNOWN_LEASE, {"lease": None}),
    (Reason.STALE_OWNER, {"proof": a_proof(fence=Fence(epoch=1, counter=6))}),
    (Reason.STALE_OWNER, {"proof": a_proof(fence=Fence(epoch=0, counter=8))}),
    (Reason.STALE_OWNER, {"proof": a_proof(lease_id=OTHER_LEASE_ID)}),
    (Reason.WRONG_ATTEMPT, {"proof": a_proof(attempt_id=OTHER_ATTEMPT_ID)}),
    (Reason.VERSION_CHANGED, {"expected_version": 3}),
    (Reason.VERSION_CHANGED, {"expected_version": 6}),
    (Reason.VERSION_CHANGED, {"expected_version": 4, "lease": a_lease(renewed_at=None)}),
    (Reason.LEASE_ENDED, {"lease": a_lease(status=LeaseStatus.RELEASED)}),
    (Reason.LEASE_ENDED, {"lease": a_lease(status=LeaseStatus.TRANSFERRED)}),
    (Reason.LEASE_EXPIRED, {"lease": a_lease(expires_at=NOW)}),
    (Reason.CLOCK_STEPPED_BACK, {"lease": a_lease(renewed_at=NOW + TICK)}),
    (
        Reason.CLOCK_STEPPED_BACK,
        {"lease": a_lease(renewed_at=None, created_at=NOW + TICK)},
    ),
    (Reason.ATTEMPT_CLOSED, {"attempt_state": AttemptState.LOST}),
    (Reason.ATTEMPT_CLOSED, {"attempt_state": AttemptState.OUTCOME_UNKNOWN}),
    (Reason.JOB_TERMINAL, {"job_state": JobState.CANCELLED}),
    (Reason.CANCEL_ASKED, {"cancel_asked_at": NOW - SECOND}),
    (Reason.CANCEL_ASKED, {"cancel_asked_at": NOW, "cancel_follow": True, "stop_at": NOW}),
    (Reason.CANCEL_ASKED, {"cancel_asked_at": NOW, "stop_at": NOW + HOUR}),
    (Reason.POLICY_CLOSED, {"policy_open": False}),
    (Reason.LEASE_LIFE_SPENT, {"bounds": some_bounds(lease_life_max=60 * SECOND)}),
    (
        Reason.LEASE_LIFE_SPENT,
        {
            "lease": a_lease(first_reserved_at=NOW - HOUR),
            "bounds": some_bounds(lease_life_max=HOUR, first_reserved_at=None),
        },
    ),
    (Reason.QUEUE_AGE_SPENT, {"bounds": some_bounds(waiting_since=NOW - HOUR)}),
    (
        Reason.QUEUE_AGE_SPENT,
        {"bounds": some_bounds(waiting_since=NOW - 40 * SECOND, queue_time_used=HOUR - SECOND)},
    ),
    (Reason.RESERVED_TIME_SPENT, {"bounds": some_bounds(reserved_time_max=60 * SECOND)}),
    (Reason.RESERVED_TIME_SPENT, {"bounds": some_bounds(reserved_time_used=6 * HOUR)}),
    (Reason.RENEWAL_BUDGET_SPENT, {"renewals_max": 4}),
    (Reason.RENEWAL_BUDGET_SPENT, {"renewals_max": 10, "renewals_used": 6}),
    (
        Reason.RENEWAL_BUDGET_SPENT,
        {"renewals_max": 10, "lease": a_lease(renewals_before=6)},
    ),
    (Reason.RUN_LIMIT_SPENT, {"bounds": some_bounds(started_at=NOW - HOUR)}),
    (Reason.PROVIDER_WAIT_SPENT, {"bounds": some_bounds(accepted_at=NOW - HOUR)}),
    (Reason.NO_LIVE_WORKER, {"stage": Stage.WAITING, "has_live_worker": False}),
    (
        Reason.NO_PROGRESS,
        {"bounds": some_bounds(started_at=NOW - SECOND, stall_limit=SECOND)},
    ),
]


@pytest.mark.parametrize(
    ("reason", "changes"), CAUSES, ids=[f"{reason}-{n}" for n, (reason, _) in enumerate(CAUSES)]
)
def test_each_cause_refuses_with_its_own_reason(
    reason: RenewalRefusal, changes: dict[str, Any]
) -> None:
    verdict = decide_renewal(a_renewal(**changes))
    assert isinstance(verdict, Refused)
    assert verdict.reason is reason


def test_every_reason_of_the_vocabulary_has_a_row() -> None:
    assert {reason for reason, _ in CAUSES} == set(RenewalRefusal)


def test_causes_are_judged_in_the_order_of_the_vocabulary() -> None:
    """Of two causes at once the earlier one of the list is told."""
    changes_of = dict(reversed(CAUSES))
    order = list(RenewalRefusal)
    for earlier, later in pairwise(order):
        both = _merged(changes_of[later], changes_of[earlier])
        verdict = decide_renewal(a_renewal(**both))
        assert isinstance(verdict, Refused), (earlier, later)
        assert verdict.reason is earlier, (earlier, later)


def _merged(later: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    # Bounds of both rows are put into one object; any other clash is won by the earlier row.
    both = {**later, **earlier}
    if "bounds" in later and "bounds" in earlier:
        plain = some_bounds()
        changed = {
            name: getattr(row["bounds"], name)
            for row in (later, earlier)
            for name in plain.__slots__
            if getattr(row["bounds"], name) != getattr(plain, name)
        }
        both["bounds"] = some_bounds(**changed)
    return both


def test_a_stale_owner_learns_nothing_about_the_job() -> None:
    verdict = decide_renewal(
        a_renewal(
            proof=a_proof(fence=Fence(epoch=1, counter=6)),
            job_state=JobState.CANCELLED,
            cancel_asked_at=NOW,
        )
    )
    assert verdict == Refused(reason=RenewalRefusal.STALE_OWNER, remaining=None)


def test_the_owner_is_told_what_remains_even_when_refused() -> None:
    verdict = decide_renewal(a_renewal(policy_open=False, renewals_used=6))
    assert isinstance(verdict, Refused)
    assert verdict.remaining is not None
    assert verdict.remaining.renewals == 90
    assert verdict.remaining.lease_life == 6 * HOUR - 60 * SECOND
    assert verdict.remaining.reserved_time == 6 * HOUR - 60 * SECOND
    assert verdict.remaining.queue_age == HOUR


def test_a_renewal_reaches_one_ttl_from_now_and_spends_one() -> None:
    verdict = decide_renewal(a_renewal())
    assert isinstance(verdict, Renewed)
    assert verdict.expires_at == NOW + TTL
    assert verdict.remaining.renewals == 95


@pytest.mark.parametrize(
    ("expires_at", "renewed"),
    [(NOW - TICK, False), (NOW, False), (NOW + TICK, True)],
    ids=["just-before", "at", "just-after"],
)
def test_an_expired_lease_is_not_revived_by_a_late_renewal(
    expires_at: Any, *, renewed: bool
) -> None:
    verdict = decide_renewal(a_renewal(lease=a_lease(expires_at=expires_at)))
    assert isinstance(verdict, Renewed) is renewed


@pytest.mark.parametrize(
    "deadline",
    [
        {"first_reserved_at": NOW - HOUR, "lease_life_max": HOUR},
        {"waiting_since": NOW - HOUR},
        {"reserved_at": NOW - HOUR, "reserved_time_max": HOUR},
        {"started_at": NOW - HOUR},
        {"accepted_at": NOW - HOUR},
        {"started_at": NOW - 2 * SECOND, "progress_at": NOW - SECOND, "stall_limit": SECOND},
    ],
    ids=["lease-life", "queue-age", "reserved-time", "run", "provider-wait", "stall"],
)
def test_a_bound_caps_the_expiry_just_before_it_and_refuses_at_and_after_it(
    deadline: dict[str, Any],
) -> None:
    facts = a_renewal(bounds=some_bounds(**deadline))
    before = decide_renewal(_at(facts, -TICK))
    assert isinstance(before, Renewed)
    assert before.expires_at == NOW
    assert isinstance(decide_renewal(_at(facts, timedelta(0))), Refused)
    assert isinstance(decide_renewal(_at(facts, TICK)), Refused)


def _at(facts: RenewalFacts, shift: timedelta) -> RenewalFacts:
    return a_renewal(now=facts.now + shift, bounds=facts.bounds)


@pytest.mark.parametrize(
    "changes",
    [
        {"renewal_key": "earlier", "expected_version": 5},
        {"renewal_key": "earlier", "expected_version": None},
        {"renewal_key": "earlier", "expected_version": 4},
        {"renewal_key": None, "expected_version": 4},
        {"renewal_key": "earlier", "cancel_asked_at": NOW},
    ],
    ids=["same-key", "key-alone", "key-and-version", "same-version", "after-a-cancel-request"],
)
def test_a_repeated_renewal_changes_nothing_and_tells_the_state(changes: dict[str, Any]) -> None:
    verdict = decide_renewal(a_renewal(**changes))
    assert isinstance(verdict, AlreadyRenewed)
    assert verdict.expires_at == a_lease().expires_at
    assert verdict.version == a_lease().version
    assert verdict.remaining.renewals == 96


def test_a_repeat_of_a_lease_that_has_expired_since_is_told_so() -> None:
    verdict = decide_renewal(a_renewal(renewal_key="earlier", lease=a_lease(expires_at=NOW)))
    assert isinstance(verdict, Refused)
    assert verdict.reason is RenewalRefusal.LEASE_EXPIRED


def test_the_owner_follows_a_cancellation_until_its_stop_and_no_longer() -> None:
    stop_at = NOW + 3 * SECOND
    verdict = decide_renewal(
        a_renewal(cancel_asked_at=NOW, cancel_follow=True, stop_at=stop_at, policy_open=False)
    )
    assert isinstance(verdict, Renewed)
    assert verdict.expires_at == stop_at


def test_waiting_long_never_shortens_the_run() -> None:
    verdict = decide_renewal(
        a_renewal(bounds=some_bounds(queue_time_used=HOUR, started_at=NOW - SECOND))
    )
    assert isinstance(verdict, Renewed)
    assert verdict.expires_at == NOW + TTL


SPANS = st.timedeltas(min_value=timedelta(0), max_value=4 * HOUR)
INSTANTS = st.none() | st.builds(lambda span: NOW - 2 * HOUR + span, SPANS)


@given(
    bounds=st.builds(
        limits.JobBounds,
        waiting_since=INSTANTS,
        queue_time_used=SPANS,
        queue_age_max=SPANS,
        first_reserved_at=INSTANTS,
        lease_life_max=SPANS,
        reserved_at=INSTANTS,
        reserved_time_used=SPANS,
        reserved_time_max=SPANS,
        accepted_at=INSTANTS,
        provider_wait_max=SPANS,
        started_at=INSTANTS,
        run_time_max=SPANS,
        progress_at=INSTANTS,
        stall_limit=st.none() | SPANS,
    ),
    ttl=st.timedeltas(min_value=TICK, max_value=4 * HOUR),
    first_reserved_at=INSTANTS.filter(lambda at: at is not None),
    stop_at=INSTANTS,
    cancelled=st.booleans(),
)
def test_a_renewal_never_moves_expiry_past_any_hard_deadline_nor_into_the_past(
    bounds: limits.JobBounds, ttl: timedelta, first_reserved_at: Any, stop_at: Any, cancelled: Any
) -> None:
    verdict = decide_renewal(
        a_renewal(
            bounds=bounds,
            ttl=ttl,
            lease=a_lease(lease_id=LEASE_ID, first_reserved_at=first_reserved_at),
            cancel_asked_at=NOW if cancelled else None,
            cancel_follow=cancelled,
            stop_at=stop_at,
        )
    )
    if not isinstance(verdict, Renewed):
        return
    assert NOW < verdict.expires_at <= NOW + ttl
    assert verdict.expires_at <= first_reserved_at + bounds.lease_life_max
    if cancelled:
        assert verdict.expires_at <= stop_at
    for deadline in limits.hard_deadlines(bounds, first_reserved_at=first_reserved_at):
        assert verdict.expires_at <= deadline.at
