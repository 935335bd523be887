"""What a holder may still do with its lease (SPEC C3, C4)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from leaseq.errors import CancelAsked, LeaseqError, OwnershipLost, OwnershipUncertain
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief, Guard, Proof
from leaseq.vocabulary import Certainty

PROOF = Proof(UUID(int=1), UUID(int=2), 1, 7)
DOUBT_AT, DEADLINE_AT = 20.0, 30.0
SOUND = Belief(
    deadline=Deadline(DEADLINE_AT), doubt_at=DOUBT_AT, certainty=Certainty.CERTAIN, reason=""
)


class Word:
    """A belief that a test can change under a guard."""

    def __init__(self, belief: Belief) -> None:
        self.belief = belief

    def __call__(self) -> Belief:
        return self.belief

    def becomes(self, **changes: Any) -> None:
        self.belief = replace(self.belief, **changes)


@pytest.fixture
def word() -> Word:
    return Word(SOUND)


@pytest.fixture
def guard(word: Word) -> Guard:
    return Guard(PROOF, word)


CERTAIN, UNCERTAIN, LOST = Certainty
AGES = [
    pytest.param(CERTAIN, 19.99, CERTAIN, id="certain before the doubt"),
    pytest.param(CERTAIN, 20.0, UNCERTAIN, id="an answer is overdue"),
    pytest.param(CERTAIN, 29.99, UNCERTAIN, id="just before the deadline"),
    pytest.param(CERTAIN, 30.0, LOST, id="at the deadline"),
    pytest.param(CERTAIN, 1e6, LOST, id="long after the deadline"),
    pytest.param(UNCERTAIN, 0.0, UNCERTAIN, id="told to doubt"),
    pytest.param(UNCERTAIN, 30.0, LOST, id="doubt ends in loss"),
    pytest.param(LOST, 0.0, LOST, id="told of the loss before the deadline"),
]


@pytest.mark.parametrize(("told", "now", "expected"), AGES)
def test_a_word_only_gets_worse_with_age(told: Certainty, now: float, expected: Certainty) -> None:
    belief = replace(SOUND, certainty=told)
    assert belief.certainty_at(now) is expected
    assert Guard(PROOF, lambda: belief).certainty(now) is expected


@pytest.mark.parametrize(
    ("told", "cancelled", "now", "error", "reason"),
    [
        pytest.param(CERTAIN, False, 20.0, OwnershipUncertain, "no_answer", id="overdue"),
        pytest.param(CERTAIN, False, 30.0, OwnershipLost, "deadline_passed", id="passed"),
        pytest.param(LOST, False, 0.0, OwnershipLost, "deadline_passed", id="told lost"),
        pytest.param(CERTAIN, True, 0.0, CancelAsked, "", id="cancelled while certain"),
        pytest.param(CERTAIN, True, 20.0, CancelAsked, "no_answer", id="cancelled in doubt"),
        pytest.param(CERTAIN, True, 30.0, OwnershipLost, "deadline_passed", id="loss over cancel"),
    ],
)
def test_check_raises_what_the_holder_must_do(
    told: Certainty, cancelled: bool, now: float, error: type[LeaseqError], reason: str
) -> None:
    belief = replace(SOUND, certainty=told, cancel_asked=cancelled)
    with pytest.raises(LeaseqError) as raised:
        Guard(PROOF, lambda: belief).check(now)
    assert type(raised.value) is error
    assert raised.value.ids == {
        "lease_id": PROOF.lease_id,
        "attempt_id": PROOF.attempt_id,
        "reason": reason,
    }


def test_check_says_nothing_while_the_lease_is_certain(guard: Guard) -> None:
    guard.check(0.0)
    guard.check(DOUBT_AT - 0.01)
    assert guard.certainty(0.0) is CERTAIN
    assert not guard.cancel_asked(0.0)


def test_the_told_reason_is_kept(word: Word, guard: Guard) -> None:
    word.becomes(certainty=LOST, reason="stale_owner")
    with pytest.raises(OwnershipLost) as raised:
        guard.check(0.0)
    assert raised.value.ids["reason"] == "stale_owner"


def test_an_answer_ends_the_doubt(word: Word, guard: Guard) -> None:
    assert guard.certainty(25.0) is UNCERTAIN
    word.becomes(doubt_at=40.0, deadline=Deadline(50.0))
    assert guard.certainty(25.0) is CERTAIN
    guard.check(25.0)


def lose_by_the_clock(_word: Word, guard: Guard) -> None:
    assert guard.certainty(DEADLINE_AT) is LOST


def lose_by_word(word: Word, guard: Guard) -> None:
    word.becomes(certainty=LOST)
    assert guard.certainty(0.0) is LOST


def lose_in_check(_word: Word, guard: Guard) -> None:
    with pytest.raises(OwnershipLost):
        guard.check(DEADLINE_AT)


@pytest.mark.parametrize("lose", [lose_by_the_clock, lose_by_word, lose_in_check])
def test_a_lost_lease_is_never_revived(
    lose: Callable[[Word, Guard], None], word: Word, guard: Guard
) -> None:
    lose(word, guard)
    word.becomes(certainty=CERTAIN, deadline=Deadline(1e9), doubt_at=1e9)
    assert guard.certainty(0.0) is LOST
    with pytest.raises(OwnershipLost):
        guard.check(0.0)


def test_a_cancellation_is_never_forgotten(word: Word, guard: Guard) -> None:
    word.becomes(cancel_asked=True)
    assert guard.cancel_asked(0.0)
    word.becomes(cancel_asked=False)
    with pytest.raises(CancelAsked):
        guard.check(0.0)


def test_a_holder_that_slept_while_it_was_renewed_has_lost_nothing(
    word: Word, guard: Guard
) -> None:
    guard.check(0.0)
    word.becomes(deadline=Deadline(130.0), doubt_at=120.0)
    guard.check(100.0)


def test_a_time_that_is_no_number_is_never_certain(guard: Guard) -> None:
    assert guard.certainty(float("nan")) is LOST
