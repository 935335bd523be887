"""Nine places, no float, and a verdict for every way in which a hold can end."""

import decimal
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseq.rules import money as rules
from leaseq.rules.money import HoldExpiryFacts, Keep, Release, Settle, SettlementFacts, money, price
from leaseq.rules.transitions import Refused
from leaseq.vocabulary import EndReason, HoldState, JobState, KeepReason, TransitionRefusal

from .facts import HOUR, NOW, TICK

ZERO, ONE, THREE, TEN = Decimal(0), Decimal(1), Decimal(3), Decimal(10)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.5", "1.500000000"),
        (7, "7.000000000"),
        ("0.000000001", "0.000000001"),
        ("1.0000000000", "1.000000000"),
        ("-0", "0.000000000"),
        (10**20 - 1, "99999999999999999999.000000000"),
    ],
)
def test_exact_values_become_money_with_nine_places(value: Any, text: str) -> None:
    assert f"{money(value):f}" == text


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.5, rules.NotExact),
        (True, rules.NotExact),
        (None, rules.NotExact),
        ("ten", rules.NotExact),
        ("NaN", rules.NotFinite),
        ("sNaN", rules.NotFinite),
        ("Infinity", rules.NotFinite),
        ("0.0000000001", rules.TooManyPlaces),
        (10**20, rules.TooLarge),
        ("1e999999", rules.TooLarge),
        ("-1", rules.Negative),
        ("1e-999999", rules.TooManyPlaces),
    ],
)
def test_what_is_not_money_is_refused_by_name(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        money(value)
    assert isinstance(caught.value, ValueError)


def test_a_negative_amount_is_money_where_the_caller_allows_it() -> None:
    assert money("-1.25", negative=True) == Decimal("-1.25")


@pytest.mark.parametrize(
    ("quantity", "unit", "product"),
    [
        ("3", "0.000000002", "0.000000006"),
        ("0.5", "0.000000001", "0.000000000"),
        ("1.5", "0.000000001", "0.000000002"),
        ("2.5", "0.000000001", "0.000000002"),
        ("1000000", "0.00000000015", "0.000150000"),
    ],
)
def test_a_price_is_rounded_half_to_even_once(quantity: str, unit: str, product: str) -> None:
    assert f"{price(Decimal(quantity), Decimal(unit)):f}" == product


def test_a_price_does_not_depend_on_the_callers_decimal_context() -> None:
    with decimal.localcontext(prec=3):
        product = price(Decimal("12345678.123456789"), Decimal(1))
        amount = money("12345678901234567890.123456789")
    assert product == Decimal("12345678.123456789")
    assert amount == Decimal("12345678901234567890.123456789")


@pytest.mark.parametrize(
    ("quantity", "unit", "error"),
    [
        (Decimal("NaN"), ONE, rules.NotFinite),
        (ONE, Decimal(-1), rules.Negative),
        (Decimal(10**19), TEN, rules.TooLarge),
        (Decimal(10**20), ZERO, rules.TooLarge),
        (1.0, ONE, rules.NotExact),
    ],
)
def test_a_price_of_what_is_no_number_is_refused(
    quantity: Any, unit: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        price(quantity, unit)


@pytest.mark.parametrize(
    ("amount", "verdict"),
    [
        (THREE, rules.Held(available=ONE)),
        (Decimal(4), rules.Held(available=ZERO)),
        (Decimal(5), rules.Shortfall(missing=ONE)),
    ],
    ids=["below", "at", "above"],
)
def test_a_hold_never_passes_the_limit(amount: Decimal, verdict: Any) -> None:
    held = rules.decide_hold(limit=TEN, held=Decimal(4), settled=Decimal(2), amount=amount)
    assert held == verdict


FINISHED = SettlementFacts(
    job_state=JobState.COMPLETED,
    hold_state=HoldState.HELD,
    hold_amount=TEN,
    possibly_sent=True,
    outcome_unknown=False,
    closed_by_evidence=True,
    costs=(THREE,),
)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Settle(settle=THREE, release=Decimal(7), overage=ZERO)),
        ({"costs": (THREE, ONE)}, Settle(settle=Decimal(4), release=Decimal(6), overage=ZERO)),
        ({"costs": (TEN,)}, Settle(settle=TEN, release=ZERO, overage=ZERO)),
        ({"costs": (TEN, ONE)}, Settle(settle=TEN, release=ZERO, overage=ONE)),
        ({"costs": (ZERO,)}, Settle(settle=ZERO, release=TEN, overage=ZERO)),
        (
            {"job_state": JobState.CANCELLED},
            Settle(settle=THREE, release=Decimal(7), overage=ZERO),
        ),
        ({"costs": ()}, Release(release=TEN, cause=EndReason.NO_USAGE)),
        (
            {"costs": (), "possibly_sent": False},
            Release(release=TEN, cause=EndReason.NEVER_SENT),
        ),
        ({"costs": (ONE, None)}, Keep(reason=KeepReason.UNPRICED_USAGE)),
        ({"outcome_unknown": True}, Keep(reason=KeepReason.OUTCOME_UNKNOWN)),
        ({"closed_by_evidence": False}, Keep(reason=KeepReason.NO_EVIDENCE)),
        ({"job_state": JobState.RUNNING}, Keep(reason=KeepReason.JOB_NOT_TERMINAL)),
        (
            {"hold_state": HoldState.SETTLED},
            Refused(reason=TransitionRefusal.HOLD_NOT_OPEN),
        ),
        (
            {"hold_state": HoldState.RELEASED},
            Refused(reason=TransitionRefusal.HOLD_NOT_OPEN),
        ),
    ],
    ids=[
        "usage",
        "retries-too",
        "exactly-the-hold",
        "above-the-hold",
        "priced-at-zero",
        "cancelled",
        "no-usage",
        "never-sent",
        "unpriced",
        "unknown",
        "no-evidence",
        "not-terminal",
        "settled-before",
        "released-before",
    ],
)
def test_settlement_follows_the_verdict(changes: dict[str, Any], verdict: Any) -> None:
    assert rules.decide_settlement(replace(FINISHED, **changes)) == verdict


AMOUNTS = st.decimals(min_value=0, max_value=10**12, places=9)


@given(hold=AMOUNTS, costs=st.lists(AMOUNTS, min_size=1, max_size=5))
def test_a_settlement_conserves_the_hold_and_loses_no_cost(
    hold: Decimal, costs: list[Decimal]
) -> None:
    verdict = rules.decide_settlement(replace(FINISHED, hold_amount=hold, costs=tuple(costs)))
    assert isinstance(verdict, Settle)
    assert verdict.settle + verdict.release == hold
    assert verdict.settle + verdict.overage == sum(costs)
    assert min(verdict.settle, verdict.release, verdict.overage) >= 0


DUE = HoldExpiryFacts(
    now=NOW,
    expires_at=NOW,
    hold_state=HoldState.HELD,
    hold_amount=TEN,
    job_state=JobState.ADMITTED,
    possibly_sent=False,
    has_usage=False,
)


def _expired(state: JobState) -> rules.ExpireHold:
    return rules.ExpireHold(release=TEN, job_state=state, reason=EndReason.HOLD_EXPIRED)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"expires_at": NOW + TICK}, Refused(reason=TransitionRefusal.NOT_YET_DUE)),
        ({}, _expired(JobState.EXPIRED)),
        ({"expires_at": NOW - HOUR}, _expired(JobState.EXPIRED)),
        ({"expires_at": None}, Refused(reason=TransitionRefusal.NOT_YET_DUE)),
        ({"job_state": JobState.FAILED}, _expired(JobState.FAILED)),
        ({"possibly_sent": True}, Keep(reason=KeepReason.POSSIBLY_SENT)),
        ({"has_usage": True}, Keep(reason=KeepReason.POSSIBLY_SENT)),
        (
            {"hold_state": HoldState.SETTLED},
            Refused(reason=TransitionRefusal.HOLD_NOT_OPEN),
        ),
    ],
    ids=[
        "just-before",
        "at",
        "after",
        "without-expiry",
        "terminal-job",
        "possibly-sent",
        "with-usage",
        "closed",
    ],
)
def test_a_holds_expiry_frees_only_what_was_never_sent(
    changes: dict[str, Any], verdict: Any
) -> None:
    assert rules.decide_hold_expiry(replace(DUE, **changes)) == verdict


def test_every_reason_to_keep_money_has_a_row() -> None:
    kept = {
        rules.decide_settlement(replace(FINISHED, **changes))
        for changes in (
            {"costs": (None,)},
            {"outcome_unknown": True},
            {"closed_by_evidence": False},
            {"job_state": JobState.RUNNING},
        )
    } | {rules.decide_hold_expiry(replace(DUE, possibly_sent=True))}
    assert kept == {Keep(reason=reason) for reason in KeepReason}


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0E-9", "0.00"),
        ("1", "1.00"),
        ("0.5", "0.50"),
        ("100.000000000", "100.00"),
        ("0.000000001", "0.000000001"),
        ("-3.120", "-3.12"),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
    ],
)
def test_money_is_shown_exactly_and_without_noise(amount: str, shown: str) -> None:
    assert rules.plain(Decimal(amount)) == shown
