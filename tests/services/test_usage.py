from decimal import Decimal
from typing import Any

import pytest

from leaseq.db import clock
from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Job, LedgerEntry, Price, UsageRecord
from leaseq.services import usage
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


def book(job: Job, *, model: str = "m", **quantities: Decimal) -> list[UsageRecord]:
    return usage.book(
        Attempt.objects.get(),
        job=job,
        provider="private",
        model=model,
        quantities=quantities,
        now=clock.read(),
    )


def test_quantities_of_one_unit_add_up_in_one_line_at_one_price(job: Job, prices: Any) -> None:
    book(job, prompt_token=Decimal(100))
    book(job, prompt_token=Decimal("0.5"))

    line = UsageRecord.objects.get()
    assert (line.quantity, line.unit_price, line.currency) == (
        Decimal("100.5"),
        Decimal("0.000001"),
        "EUR",
    )
    assert line.cost == Decimal("0.000100500")


def test_what_has_no_price_is_kept_without_one(job: Job) -> None:
    (line,) = book(job, joule=Decimal(3))
    assert (line.unit_price, line.cost) == (None, None)


def test_the_models_own_price_goes_before_the_general_and_the_latest_before_the_rest(
    job: Job, prices: Any
) -> None:
    for model, amount, valid_from in [
        ("m", "0.01", "2020-01-01T00:00Z"),
        ("m", "0.02", "2021-01-01T00:00Z"),
        ("m", "0.09", "2999-01-01T00:00Z"),
    ]:
        Price.objects.create(
            provider="private",
            model=model,
            unit="prompt_token",
            currency="EUR",
            amount=Decimal(amount),
            valid_from=valid_from,
        )
    (line,) = book(job, prompt_token=Decimal(1))
    assert line.unit_price == Decimal("0.02")


def test_nothing_is_added_to_a_line_that_was_settled(job: Job, prices: Any) -> None:
    book(job, prompt_token=Decimal(1))
    UsageRecord.objects.update(settled_by=LedgerEntry.objects.get())
    before = photograph()
    with pytest.raises(LeaseqBug, match="settled line"):
        book(job, prompt_token=Decimal(1))
    assert photograph() == before


@pytest.mark.parametrize(
    ("reported", "quantity"),
    [
        pytest.param(3, "3", id="a whole number"),
        pytest.param(0.1 + 0.2, "0.3", id="a float, rounded to six places"),
        pytest.param("2.5", "2.5", id="text"),
        pytest.param(Decimal("99999999999999.999999"), "99999999999999.999999", id="the most"),
        pytest.param(0, "0", id="nothing"),
    ],
)
def test_a_report_becomes_exact_quantities(reported: object, quantity: str) -> None:
    assert usage.sound({"x": reported}) == {"x": Decimal(quantity)}


@pytest.mark.parametrize(
    "reported",
    [
        pytest.param([1], id="no mapping"),
        pytest.param({"x": None}, id="nothing at all"),
        pytest.param({"x": True}, id="a bool"),
        pytest.param({"x": "NaN"}, id="not a number"),
        pytest.param({"x": float("inf")}, id="infinity"),
        pytest.param({"x": -0.5}, id="negative"),
        pytest.param({"x": Decimal(10) ** 14}, id="one too many"),
        pytest.param({1: 1}, id="a unit that is no text"),
        pytest.param({"": 1}, id="a unit without a name"),
        pytest.param({"u" * 51: 1}, id="a unit too long"),
        pytest.param({"a\0": 1}, id="a unit with a NUL"),
    ],
)
def test_what_is_no_usage_is_refused(reported: object) -> None:
    with pytest.raises(usage.BadUsage):
        usage.sound(reported)
