"""The demo's last table: sound books are called sound, and each imbalance is named."""

from decimal import Decimal

import pytest
from django.db import connection

from leaseq.models import Account, Hold, Price
from leaseq.services import attempts, holds, metering
from leaseq.services.attempts import Claimed
from project.demo import report
from tests.conftest import LONG_AGO

pytestmark = pytest.mark.django_db


@pytest.fixture
def settled(begun: Claimed) -> Claimed:
    """A job that used two words and was settled for them."""
    Price.objects.create(
        provider="local", unit="word", currency="EUR", amount=Decimal("0.1"), valid_from=LONG_AGO
    )
    metering.record_usage(begun.proof, unit="word", quantity=Decimal(2))
    attempts.complete(begun.proof, result=1)
    assert holds.settle(begun.job_id) == "settled"
    return begun


def without_triggers(statement: str) -> None:
    """Change what the triggers forbid, as a hand in the database would."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in ("leaseq_hold", "leaseq_account", "leaseq_usagerecord"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(statement)


def test_a_settled_job_adds_up(settled: Claimed) -> None:
    gathered = report.rows()
    assert report.imbalances(gathered) == []
    row = gathered["acme", "batch"]
    assert (row.jobs, row.completed, row.attempts) == (1, 1, 1)
    assert (row.authorised, row.held) == (Decimal(1), Decimal(0))
    assert (row.settled, row.released) == (Decimal("0.2"), Decimal("0.8"))
    assert report.other_endings() == ""


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE leaseq_account SET settled = settled + 1", "differ from the ledger"),
        (
            "UPDATE leaseq_hold SET settled = settled - 0.1, released = released + 0.1",
            "the account and its holds differ",
        ),
        ("UPDATE leaseq_usagerecord SET cost = cost * 2", "used 0.40"),
    ],
)
def test_an_imbalance_is_named(settled: Claimed, statement: str, named: str) -> None:
    without_triggers(statement)
    assert any(named in wrong for wrong in report.imbalances(report.rows()))


def test_money_that_is_still_held_is_named(begun: Claimed) -> None:
    attempts.complete(begun.proof, result=1)
    assert Hold.objects.get().held == Decimal(1)
    wrong = report.imbalances(report.rows())
    assert any("still held though every job has ended" in one for one in wrong)
    assert Account.objects.get().held == Decimal(1)
