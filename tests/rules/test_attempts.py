"""Every reason for which an act upon an attempt is refused has a row."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leaseq.rules import attempts as rules
from leaseq.rules.attempts import ByProvider
from leaseq.rules.ownership import Fence
from leaseq.rules.transitions import Refused, check_sent_move
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
    TransitionRefusal,
    WorkerState,
)

from .facts import (
    HOUR,
    NOW,
    OTHER_ATTEMPT_ID,
    OTHER_LEASE_ID,
    SECOND,
    TICK,
    TTL,
    a_claim,
    a_hold,
    a_lease,
    a_proof,
    a_reservation,
    an_act,
    an_attempt,
    an_intent,
    an_owner,
    some_bounds,
)

Reason = TransitionRefusal


@dataclass(frozen=True, kw_only=True)
class Row:
    reason: TransitionRefusal
    decide: Callable[[], Any]
    name: str


def _reserve(reason: TransitionRefusal, name: str, **changes: Any) -> Row:
    return Row(
        reason=reason,
        name=f"reserve {name}",
        decide=lambda: rules.decide_reserve(a_reservation(**changes)),
    )


def _claim(reason: TransitionRefusal, name: str, **changes: Any) -> Row:
    return Row(
        reason=reason,
        name=f"claim {name}",
        decide=lambda: rules.decide_claim(a_claim(**changes)),
    )


def _intend(reason: TransitionRefusal, name: str, **changes: Any) -> Row:
    return Row(
        reason=reason,
        name=f"intend {name}",
        decide=lambda: rules.decide_intent(an_intent(**changes)),
    )


def _complete(reason: TransitionRefusal, name: str, **changes: Any) -> Row:
    return Row(
        reason=reason,
        name=f"complete {name}",
        decide=lambda: rules.decide_complete(an_act(**changes), keep_result=False),
    )


def _admitted(**changes: Any) -> Any:
    return an_attempt(job_state=JobState.ADMITTED, **changes)


def _queued(**changes: Any) -> Any:
    return an_attempt(**{"job_state": JobState.QUEUED, **changes})


def _dispatching(**changes: Any) -> Any:
    return an_attempt(**{"job_state": JobState.DISPATCHING, **changes})


SPENT = some_bounds(waiting_since=NOW - HOUR)
STALE = an_owner(proof=a_proof(fence=Fence(epoch=1, counter=6)))
UNKNOWN = AttemptState.OUTCOME_UNKNOWN

ROWS = [
    _reserve(Reason.JOB_TERMINAL, "a terminal job", attempt=an_attempt(job_state=JobState.FAILED)),
    _reserve(Reason.NOT_A_LEGAL_MOVE, "twice", attempt=an_attempt(job_state=JobState.RESERVED)),
    _reserve(
        Reason.NOT_THE_CURRENT_ATTEMPT,
        "an old attempt",
        attempt=_admitted(current_attempt_id=OTHER_ATTEMPT_ID),
    ),
    _reserve(
        Reason.ATTEMPT_CLOSED,
        "a closed attempt",
        attempt=_admitted(attempt_state=AttemptState.LOST),
    ),
    _reserve(Reason.CANCEL_ASKED, "after a cancel", attempt=_admitted(cancel_asked_at=NOW)),
    _reserve(Reason.QUEUE_AGE_SPENT, "at its queue deadline", bounds=SPENT),
    _reserve(Reason.HOLD_NOT_OPEN, "without money", hold=a_hold(state=HoldState.RELEASED)),
    _reserve(Reason.HOLD_EXPIRED, "at the hold's expiry", hold=a_hold(expires_at=NOW)),
    _reserve(Reason.NOT_YET_DUE, "before not_before", not_before=NOW + TICK),
    _reserve(Reason.NO_PERMIT_FREE, "with the pool full", permits_free=False),
    _reserve(Reason.OUT_OF_ORDER, "with time gone back", attempt=_admitted(changed_at=NOW + TICK)),
    _claim(Reason.JOB_TERMINAL, "a terminal job", attempt=_queued(job_state=JobState.CANCELLED)),
    _claim(Reason.NOT_QUEUED, "delivered twice", attempt=_queued(job_state=JobState.DISPATCHING)),
    _claim(Reason.NOT_QUEUED, "not yet queued", attempt=_queued(job_state=JobState.RESERVED)),
    _claim(
        Reason.NOT_THE_CURRENT_ATTEMPT,
        "by an old message",
        attempt=_queued(current_attempt_id=OTHER_ATTEMPT_ID),
    ),
    _claim(Reason.ATTEMPT_CLOSED, "closed", attempt=_queued(attempt_state=AttemptState.FAILED)),
    _claim(Reason.CANCEL_ASKED, "after a cancel", attempt=_queued(cancel_asked_at=NOW)),
    _claim(Reason.QUEUE_AGE_SPENT, "at its queue deadline", bounds=SPENT),
    _claim(Reason.HOLD_NOT_OPEN, "without money", hold=a_hold(state=HoldState.EXPIRED)),
    _claim(Reason.HOLD_EXPIRED, "at the hold's expiry", hold=a_hold(expires_at=NOW)),
    _claim(
        Reason.RESERVATION_EXPIRED,
        "with one permit of two expired",
        permits=(a_lease(), a_lease(expires_at=NOW)),
    ),
    _claim(
        Reason.RESERVATION_EXPIRED,
        "with a permit ended",
        permits=(a_lease(status=LeaseStatus.RELEASED),),
    ),
    _claim(Reason.WRONG_QUEUE, "from another queue", queue_matches=False),
    _claim(Reason.WORKER_NOT_LIVE, "while draining", worker_state=WorkerState.DRAINING),
    _claim(Reason.WORKER_NOT_LIVE, "when dead", worker_state=WorkerState.DEAD),
    _claim(Reason.SLOT_NOT_OURS, "on a stranger's slot", slot_owned=False),
    _claim(
        Reason.NO_FREE_SLOT,
        "over a live lease",
        slot_lease=a_lease(lease_id=OTHER_LEASE_ID, expires_at=NOW + TICK),
    ),
    _intend(Reason.STALE_OWNER, "by a stale owner", word=STALE),
    _intend(Reason.STALE_OWNER, "with no lease", word=an_owner(lease=None)),
    _intend(
        Reason.LEASE_ENDED,
        "with an ended lease",
        word=an_owner(lease=a_lease(status=LeaseStatus.REVOKED)),
    ),
    _intend(Reason.LEASE_EXPIRED, "at expiry", word=an_owner(lease=a_lease(expires_at=NOW))),
    _intend(
        Reason.NOT_THE_CURRENT_ATTEMPT,
        "with another attempt's lease",
        word=an_owner(lease=a_lease(attempt_id=OTHER_ATTEMPT_ID)),
    ),
    _intend(
        Reason.NOT_THE_CURRENT_ATTEMPT,
        "with another attempt's proof",
        word=an_owner(
            proof=a_proof(attempt_id=OTHER_ATTEMPT_ID),
            lease=a_lease(attempt_id=OTHER_ATTEMPT_ID),
        ),
    ),
    _intend(Reason.CANCEL_ASKED, "after a cancel", attempt=_dispatching(cancel_asked_at=NOW)),
    _intend(Reason.ALREADY_DISPATCHED, "twice", attempt=_dispatching(possibly_sent=True)),
    _intend(Reason.ALREADY_DISPATCHED, "with a request on record", has_request=True),
    _intend(
        Reason.NOT_A_LEGAL_MOVE,
        "while running",
        attempt=_dispatching(job_state=JobState.RUNNING),
    ),
    _intend(
        Reason.OUTCOME_UNKNOWN,
        "while unknown",
        attempt=_dispatching(attempt_state=UNKNOWN),
    ),
    _intend(Reason.HOLD_NOT_OPEN, "without money", hold=a_hold(state=HoldState.SETTLED)),
    _intend(Reason.HOLD_EXPIRED, "at the hold's expiry", hold=a_hold(expires_at=NOW)),
    _complete(Reason.STALE_OWNER, "by a stale owner", word=STALE),
    _complete(Reason.JOB_TERMINAL, "a cancelled job", job_state=JobState.CANCELLED),
    _complete(Reason.ATTEMPT_CLOSED, "a closed one", attempt_state=AttemptState.LOST),
    _complete(Reason.OUTCOME_UNKNOWN, "unknown, by its owner", attempt_state=UNKNOWN),
    _complete(Reason.NOT_A_LEGAL_MOVE, "unstarted", job_state=JobState.PROVIDER_ACCEPTED),
    _complete(Reason.OUT_OF_ORDER, "with time gone back", changed_at=NOW + TICK),
    _complete(
        Reason.NOT_THE_CURRENT_ATTEMPT,
        "by a stranger's callback",
        word=ByProvider(matches=False),
        possibly_sent=True,
    ),
    _complete(Reason.OUT_OF_ORDER, "though never sent", word=ByProvider(matches=True)),
    _complete(
        Reason.OUT_OF_ORDER,
        "by a provider with time gone back",
        word=ByProvider(matches=True),
        possibly_sent=True,
        attempt_state=UNKNOWN,
        changed_at=NOW + TICK,
    ),
    Row(
        reason=Reason.SENT_IS_STICKY,
        name="take back that it was sent",
        decide=lambda: Refused(reason=check_sent_move(True, False) or Reason.UNKNOWN_JOB),  # noqa: FBT003
    ),
    Row(
        reason=Reason.NOT_A_LEGAL_MOVE,
        name="queue an admitted job",
        decide=lambda: rules.decide_queue(_admitted()),
    ),
    Row(
        reason=Reason.CANCEL_ASKED,
        name="queue after a cancel",
        decide=lambda: rules.decide_queue(
            an_attempt(job_state=JobState.RESERVED, cancel_asked_at=NOW)
        ),
    ),
    Row(
        reason=Reason.NOT_A_LEGAL_MOVE,
        name="accept twice",
        decide=lambda: rules.decide_accept(an_act(job_state=JobState.PROVIDER_ACCEPTED)),
    ),
    Row(
        reason=Reason.NOT_A_LEGAL_MOVE,
        name="start what was not accepted",
        decide=lambda: rules.decide_start(an_act(job_state=JobState.DISPATCHING)),
    ),
    Row(
        reason=Reason.NOT_A_LEGAL_MOVE,
        name="progress before the start",
        decide=lambda: rules.decide_progress(an_act(job_state=JobState.PROVIDER_ACCEPTED)),
    ),
    Row(
        reason=Reason.STALE_OWNER,
        name="fail by a stale owner",
        decide=lambda: rules.decide_fail(an_act(word=STALE)),
    ),
    Row(
        reason=Reason.JOB_TERMINAL,
        name="cancel a completed job",
        decide=lambda: rules.decide_cancel_request(an_attempt(job_state=JobState.COMPLETED)),
    ),
    Row(
        reason=Reason.OUT_OF_ORDER,
        name="cancel with time gone back",
        decide=lambda: rules.decide_cancel_request(an_attempt(changed_at=NOW + TICK)),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_each_refusal_has_its_own_reason(row: Row) -> None:
    assert row.decide() == Refused(reason=row.reason)


def test_every_reason_that_rules_can_give_has_a_row() -> None:
    """What rules can give is what their source names; services find some reasons alone."""
    named = {
        Reason.__members__[name]
        for module in Path(rules.__file__).parent.glob("*.py")
        for name in re.findall(r"TransitionRefusal\.([A-Z_]+)", module.read_text())
    }
    assert len(named) > 15
    assert {row.reason for row in ROWS} == named


def test_a_reservation_reaches_one_ttl_and_never_past_the_queue_deadline() -> None:
    plain = rules.decide_reserve(a_reservation())
    assert plain == rules.Reserve(expires_at=NOW + TTL)
    late = some_bounds(waiting_since=NOW - HOUR + SECOND)
    capped = rules.decide_reserve(a_reservation(bounds=late))
    assert capped == rules.Reserve(expires_at=NOW + SECOND)


@pytest.mark.parametrize("not_before", [NOW - TICK, NOW], ids=["just-after", "at"])
def test_a_job_is_reserved_from_its_not_before_on(not_before: Any) -> None:
    assert isinstance(rules.decide_reserve(a_reservation(not_before=not_before)), rules.Reserve)


def test_a_claim_of_a_free_slot_needs_nothing_ended_first() -> None:
    assert rules.decide_claim(a_claim()) == rules.Claim(expires_at=NOW + TTL, expire_first=None)


def test_a_claim_over_a_dead_lease_ends_it_in_the_same_transaction() -> None:
    dead = a_lease(lease_id=OTHER_LEASE_ID, expires_at=NOW)
    verdict = rules.decide_claim(a_claim(slot_lease=dead))
    assert verdict == rules.Claim(expires_at=NOW + TTL, expire_first=OTHER_LEASE_ID)


def test_work_without_money_may_be_sent() -> None:
    assert rules.decide_intent(an_intent(hold=None)) == rules.Intend()
    assert rules.decide_intent(an_intent(hold=a_hold(expires_at=None))) == rules.Intend()


def test_each_step_forward_carries_the_authoritys_instant() -> None:
    queue = rules.decide_queue(an_attempt(job_state=JobState.RESERVED))
    accept = rules.decide_accept(an_act(job_state=JobState.DISPATCHING))
    start = rules.decide_start(an_act(job_state=JobState.PROVIDER_ACCEPTED))
    progress = rules.decide_progress(an_act())
    assert queue == rules.Queue()
    assert accept == rules.Accept(accepted_at=NOW)
    assert start == rules.Start(started_at=NOW)
    assert progress == rules.Progress(progress_at=NOW)
    assert rules.decide_fail(an_act()) == rules.Fail()


COMPLETED = rules.Complete(
    job_state=JobState.COMPLETED,
    attempt_state=AttemptState.COMPLETED,
    reason=EndReason.COMPLETED,
)
CANCELLED = rules.Complete(
    job_state=JobState.CANCELLED,
    attempt_state=AttemptState.COMPLETED_AFTER_CANCEL,
    reason=EndReason.CANCELLED,
)


@pytest.mark.parametrize(
    ("cancel_asked_at", "keep_result", "verdict"),
    [(None, False, COMPLETED), (NOW, False, CANCELLED), (NOW, True, COMPLETED)],
    ids=["plain", "after-a-cancel-request", "after-one-but-the-policy-keeps-it"],
)
def test_cancel_against_completion(
    cancel_asked_at: Any, keep_result: Any, verdict: rules.Complete
) -> None:
    facts = an_act(cancel_asked_at=cancel_asked_at)
    assert rules.decide_complete(facts, keep_result=keep_result) == verdict


def test_a_providers_word_gives_an_unknown_outcome_its_verdict() -> None:
    facts = an_act(word=ByProvider(matches=True), possibly_sent=True, attempt_state=UNKNOWN)
    assert rules.decide_complete(facts, keep_result=False) == COMPLETED


@pytest.mark.parametrize(
    ("state", "asked", "verdict"),
    [
        (JobState.ADMITTED, None, rules.CancelNow()),
        (JobState.RESERVED, None, rules.CancelNow()),
        (JobState.QUEUED, None, rules.CancelNow()),
        (JobState.DISPATCHING, None, rules.AskCancel()),
        (JobState.PROVIDER_ACCEPTED, None, rules.AskCancel()),
        (JobState.RUNNING, None, rules.AskCancel()),
        (JobState.RUNNING, NOW, rules.AlreadyAsked()),
    ],
)
def test_a_cancel_is_immediate_only_while_nothing_runs(
    state: JobState, asked: Any, verdict: Any
) -> None:
    facts = an_attempt(job_state=state, cancel_asked_at=asked)
    assert rules.decide_cancel_request(facts) == verdict
