"""Hold, settle, release, expire: nine-place arithmetic and its verdicts (SPEC F1, F2, F4, L7)."""

from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Final

from leaseq.rules.transitions import Refused
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    EndReason,
    HoldState,
    JobState,
    KeepReason,
    TransitionRefusal,
)

MONEY_PLACES: Final = 9
INTEGER_DIGITS_MAX: Final = 20
ZERO: Final = Decimal("0.000000000")
_QUANTUM: Final = Decimal(1).scaleb(-MONEY_PLACES)
_LIMIT: Final = Decimal(10) ** INTEGER_DIGITS_MAX
# Own precision: the caller's decimal context must not round money.
_EXACT: Final = Context(prec=120, rounding=ROUND_HALF_EVEN)


class BadMoney(ValueError):  # noqa: N818 - named for what it is, like the refusal bad_money
    """The value is no amount of money; the message says why and what to pass instead."""


class NotExact(BadMoney):
    """A float, a bool or text that is no number: it cannot be taken as exact."""


class NotFinite(BadMoney):
    """Not a number, or infinite."""


class TooManyPlaces(BadMoney):
    """More than nine places after the point."""


class TooLarge(BadMoney):
    """More than twenty digits before the point."""


class Negative(BadMoney):
    """Below zero where only zero or more makes sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The amount may be held; `available` is what the account then still has."""

    available: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """The account lacks this much; nothing is held (SPEC A4)."""

    missing: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementFacts:
    """What the closing of a hold is decided by, over all attempts the hold stands for.

    `costs` has one item per usage record, None where its price is not known (SPEC M3).
    `closed_by_evidence` says that of every possibly-sent attempt the end is known by
    evidence (SPEC L5a), not by the end of monitoring.
    """

    job_state: JobState
    hold_state: HoldState
    hold_amount: Decimal
    possibly_sent: bool
    outcome_unknown: bool
    closed_by_evidence: bool
    costs: tuple[Decimal | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldExpiryFacts:
    """A hold past its time; `possibly_sent` and `has_usage` speak of any attempt of the job."""

    now: datetime
    expires_at: datetime | None
    hold_state: HoldState
    hold_amount: Decimal
    job_state: JobState
    possibly_sent: bool
    has_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Charge `settle`, give back `release`; `overage` is above the hold: recorded, not charged."""

    settle: Decimal
    release: Decimal
    overage: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give the whole hold back, for this cause (PROMISES M5)."""

    release: Decimal
    cause: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The hold stays; a finding says why (SPEC F2, M3)."""

    reason: KeepReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireHold:
    """Give the whole hold back as expired; the job, if not terminal, expires (SPEC F2)."""

    release: Decimal
    job_state: JobState
    reason: EndReason


def money(value: Decimal | str | int, *, negative: bool = False) -> Decimal:
    """Return the value as exact money with nine places (SPEC F1).

    Raises a BadMoney: NotExact, NotFinite, TooManyPlaces, TooLarge, or Negative unless
    `negative` allows it.
    """
    amount = _exact(value)
    if not amount.is_finite():
        message = f"{value!r} is not finite; pass a number"
        raise NotFinite(message)
    # Before quantize: 1e999999 would ask for a million digits.
    if abs(amount) >= _LIMIT:
        message = f"{amount:.3E} has more than {INTEGER_DIGITS_MAX} digits before the point"
        raise TooLarge(message)
    quantized = amount.quantize(_QUANTUM, context=_EXACT)
    if quantized != amount:
        message = f"{value!r} has more than {MONEY_PLACES} places; round it before"
        raise TooManyPlaces(message)
    if amount < 0 and not negative:
        message = f"{value!r} is negative; pass zero or more"
        raise Negative(message)
    # -0 would print as a debt of nothing.
    return quantized or ZERO


def price(quantity: Decimal, unit_price: Decimal) -> Decimal:
    """Return quantity times unit price, rounded half even to nine places (SPEC F1).

    Raises a BadMoney where a factor is no finite, exact, non-negative number or the product
    is too large.
    """
    for factor in (quantity, unit_price):
        exact = _exact(factor)
        if not exact.is_finite():
            message = f"{factor!r} is not finite; pass a number"
            raise NotFinite(message)
        if exact < 0:
            message = f"{factor!r} is negative; pass zero or more"
            raise Negative(message)
        if exact >= _LIMIT:
            message = f"{exact:.3E} has more than {INTEGER_DIGITS_MAX} digits before the point"
            raise TooLarge(message)
    product = _EXACT.multiply(quantity, unit_price)
    if product >= _LIMIT:
        message = f"{product:.3E} has more than {INTEGER_DIGITS_MAX} digits before the point"
        raise TooLarge(message)
    return money(product.quantize(_QUANTUM, context=_EXACT))


def decide_hold(
    *, limit: Decimal, held: Decimal, settled: Decimal, amount: Decimal
) -> Held | Shortfall:
    """Say whether the account can hold this much more (SPEC F3)."""
    available = limit - held - settled
    if amount > available:
        return Shortfall(missing=amount - available)
    return Held(available=available - amount)


def decide_settlement(facts: SettlementFacts) -> Settle | Release | Keep | Refused:
    """Say how the hold of a finished job closes; a closed one is never closed again (L7).

    Usage is charged up to the hold. No usage frees the money only on evidence.
    """
    if facts.hold_state is not HoldState.HELD:
        return Refused(reason=TransitionRefusal.HOLD_NOT_OPEN)
    if facts.job_state not in TERMINAL_JOB_STATES:
        return Keep(reason=KeepReason.JOB_NOT_TERMINAL)
    if facts.outcome_unknown:
        return Keep(reason=KeepReason.OUTCOME_UNKNOWN)
    if facts.possibly_sent and not facts.closed_by_evidence:
        return Keep(reason=KeepReason.NO_EVIDENCE)
    priced = [cost for cost in facts.costs if cost is not None]
    if len(priced) < len(facts.costs):
        return Keep(reason=KeepReason.UNPRICED_USAGE)
    if not priced:
        cause = EndReason.NO_USAGE if facts.possibly_sent else EndReason.NEVER_SENT
        return Release(release=facts.hold_amount, cause=cause)
    used = sum(priced, ZERO)
    settle = min(used, facts.hold_amount)
    return Settle(settle=settle, release=facts.hold_amount - settle, overage=used - settle)


def decide_hold_expiry(facts: HoldExpiryFacts) -> ExpireHold | Keep | Refused:
    """Say what a hold's expiry does: it frees only money that cannot be owed (SPEC F2)."""
    if facts.hold_state is not HoldState.HELD:
        return Refused(reason=TransitionRefusal.HOLD_NOT_OPEN)
    if facts.expires_at is None or facts.now < facts.expires_at:
        return Refused(reason=TransitionRefusal.NOT_YET_DUE)
    if facts.possibly_sent or facts.has_usage:
        return Keep(reason=KeepReason.POSSIBLY_SENT)
    is_terminal = facts.job_state in TERMINAL_JOB_STATES
    return ExpireHold(
        release=facts.hold_amount,
        job_state=facts.job_state if is_terminal else JobState.EXPIRED,
        reason=EndReason.HOLD_EXPIRED,
    )


def plain(amount: Decimal) -> str:
    """Return money as a person reads it: exact, with two places or as many as it has."""
    whole, _, places = f"{amount.normalize(_EXACT):f}".partition(".")
    return f"{whole}.{places:0<2}"


def _exact(value: object) -> Decimal:
    # bool is an int to Python, and float is where money goes wrong: both are refused.
    if isinstance(value, bool) or not isinstance(value, Decimal | str | int):
        message = f"{value!r} is a {type(value).__name__}; pass Decimal, str or int"
        raise NotExact(message)
    try:
        return Decimal(value)
    except (InvalidOperation, ValueError) as error:
        message = f"{value!r} is no decimal number"
        raise NotExact(message) from error
