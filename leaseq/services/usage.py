"""Record what an attempt consumed, priced at the moment of recording (SPEC F4, M3)."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Context, Decimal, InvalidOperation

from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Job, UsageRecord
from leaseq.queries import money as money_queries
from leaseq.rules.money import price

UNIT_LENGTH_MAX = 50
QUANTITY_MAX = Decimal(10) ** 14
QUANTITY_STEP = Decimal("0.000001")
# Own precision: the caller's decimal context must not round what was consumed.
_EXACT = Context(prec=40)


class BadUsage(ValueError):  # noqa: N818 - named for what it is, like the refusal bad_report
    """What was reported is no usage; the message says why."""


def sound(reported: object) -> dict[str, Decimal]:
    """Return quantities by unit from a report, rounded to six places.

    Raises BadUsage where it is no mapping of short texts to finite numbers from zero up to 10^14.
    """
    if not isinstance(reported, Mapping):
        raise BadUsage(f"usage is a {type(reported).__name__}; pass quantities by unit")
    quantities = {}
    for unit, given in reported.items():
        if not isinstance(unit, str) or not 0 < len(unit) <= UNIT_LENGTH_MAX:
            raise BadUsage(f"the unit {unit!r} must be text of 1 to {UNIT_LENGTH_MAX} characters")
        if not unit.isprintable():
            raise BadUsage(f"the unit {unit!r} must be printable")
        if isinstance(given, bool) or not isinstance(given, Decimal | int | float | str):
            raise BadUsage(f"the quantity of {unit} is {given!r}; pass a number")
        try:
            quantity = Decimal(str(given))
        except (InvalidOperation, ValueError) as error:
            raise BadUsage(f"the quantity of {unit} is {given!r}; pass a number") from error
        if not quantity.is_finite() or not 0 <= quantity < QUANTITY_MAX:
            raise BadUsage(f"the quantity of {unit} must be from zero up to {QUANTITY_MAX:f}")
        quantities[unit] = quantity.quantize(QUANTITY_STEP, context=_EXACT)
    return quantities


def price_late(lines: Iterable[UsageRecord]) -> None:
    """Price lines that had no price, by one that was valid when they were recorded (SPEC M3).

    So an operator mends unpriced usage by adding the price that was missing; call it under the
    job's lock.
    """
    for line in lines:
        if line.unit_price is not None:
            continue
        line.unit_price = money_queries.price_of(
            provider=line.provider,
            model=line.model,
            unit=line.unit,
            currency=line.currency,
            now=line.recorded_at,
        )
        if line.unit_price is not None:
            line.cost = price(line.quantity, line.unit_price)
            line.save(update_fields=["unit_price", "cost"])


def book(
    attempt: Attempt,
    *,
    job: Job,
    provider: str,
    model: str,
    quantities: Mapping[str, Decimal],
    now: datetime,
) -> list[UsageRecord]:
    """Add quantities by unit to the usage lines of an attempt, under the job's lock.

    A unit without a price is kept unpriced: never settled at zero (SPEC M3). Raises LeaseqBug
    where a line was settled already.
    """
    known = {line.unit: line for line in UsageRecord.objects.filter(attempt=attempt)}
    lines = []
    for unit, quantity in quantities.items():
        line = known.get(unit) or UsageRecord(
            attempt=attempt,
            unit=unit,
            quantity=Decimal(0),
            provider=provider,
            model=model,
            currency=job.account.currency,
        )
        if line.settled_by_id is not None:
            raise LeaseqBug("usage came to a settled line", attempt_id=attempt.pk, unit=unit)
        line.quantity += quantity
        line.unit_price = money_queries.price_of(
            provider=provider, model=model, unit=unit, currency=line.currency, now=now
        )
        line.cost = None if line.unit_price is None else price(line.quantity, line.unit_price)
        line.recorded_at = now
        line.save()
        lines.append(line)
    return lines
