"""Prices, and balances rebuilt from the ledger (SPEC F1, F5)."""

from datetime import datetime
from decimal import Decimal

from django.db.models import Q, Sum

from leaseq.models import Account, LedgerEntry, Price
from leaseq.vocabulary import Book


def price_of(
    *, provider: str, model: str, unit: str, currency: str, now: datetime
) -> Decimal | None:
    """Return the price of one unit that is valid now, the model's own first; None: unpriced."""
    prices = Price.objects.filter(
        Q(model=model) | Q(model=""),
        provider=provider,
        unit=unit,
        currency=currency,
        valid_from__lte=now,
    )
    found = prices.order_by("-model", "-valid_from").first()
    return None if found is None else found.amount


def rebuilt_balances(account: Account) -> dict[Book, Decimal]:
    """Return each book of an account as the sum of its entries; available counts from zero."""
    entries = LedgerEntry.objects.filter(account=account)
    balances = {}
    for book in Book:
        came = entries.filter(target=book).aggregate(total=Sum("amount"))["total"] or Decimal(0)
        went = entries.filter(source=book).aggregate(total=Sum("amount"))["total"] or Decimal(0)
        balances[book] = came - went
    return balances
