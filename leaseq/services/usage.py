"""Record what an attempt consumed, priced at the moment of recording (SPEC F4, M3)."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Job, UsageRecord
from leaseq.queries import money as money_queries
from leaseq.rules.money import price


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
