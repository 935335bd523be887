"""Times, money and ids are written as people read them, and money exactly."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from uuid import UUID

import pytest
from rich.console import Console

from leaseq.cli import tables
from leaseq.queries import wording
from leaseq.vocabulary import JobState

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(seconds=-5), "0 s"),
        (timedelta(0), "0 s"),
        (timedelta(milliseconds=20), "< 1 s"),
        (timedelta(seconds=1), "1 s"),
        (timedelta(seconds=24.9), "24 s"),
        (timedelta(seconds=119), "1 min 59 s"),
        (timedelta(seconds=120), "2 min"),
        (timedelta(minutes=3, seconds=20), "3 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=2, minutes=5, seconds=9), "2 h 5 min"),
        (timedelta(days=3, hours=4, minutes=5), "3 d 4 h"),
    ],
)
def test_a_span_is_said_in_at_most_two_units(length: timedelta, said: str) -> None:
    assert wording.span(length) == said


@pytest.mark.parametrize(
    ("expires_in", "said"),
    [(timedelta(seconds=24), "24 s"), (timedelta(seconds=-3), "ran out 3 s ago")],
    ids=["live", "over"],
)
def test_time_left_says_when_none_is_left(expires_in: timedelta, said: str) -> None:
    assert tables.left(NOW + expires_in, now=NOW) == said


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(milliseconds=72), "0:00.072"),
        (timedelta(minutes=12, milliseconds=904), "12:00.904"),
        (timedelta(hours=1, minutes=2, seconds=3), "1:02:03.000"),
    ],
)
def test_a_place_in_a_timeline_is_exact_to_the_millisecond(length: timedelta, said: str) -> None:
    assert tables.clock_face(length) == said


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (Decimal("1.000000000"), "1.00"),
        (Decimal("0.123456789"), "0.123456789"),
        (Decimal("12.500000000"), "12.50"),
        (Decimal("99999999999999999999.000000001"), "99999999999999999999.000000001"),
        (Decimal(0), "0.00"),
        (Decimal("1E+3"), "1000.00"),
        (None, "–"),
    ],
)
def test_money_is_exact_without_zeros_that_say_nothing(amount: Decimal | None, said: str) -> None:
    assert tables.money(amount) == said


def test_quantities_are_exact_without_zeros_that_say_nothing() -> None:
    assert wording.number(Decimal("120.000000")) == "120"
    assert wording.number(Decimal("0.250000")) == "0.25"


def test_what_is_copied_from_a_table_is_never_broken() -> None:
    console = Console(file=StringIO(), width=40)
    key = "2f6b8d0c4e7a"
    tables.show_table(
        console,
        "Jobs",
        columns=["=job", "task", ">age"],
        rows=[[key, "a.task.with.a.long.name" * 3, "12 min"]],
        empty="",
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert key in shown
    assert "12 min" in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_json_says_everything_exactly() -> None:
    console = Console(file=StringIO())
    tables.show_json(
        console,
        {
            "money": Decimal("1E+2"),
            "id": UUID(int=1),
            "state": JobState.RUNNING,
            "at": NOW,
            "left": timedelta(seconds=1.5),
            "none": None,
            "set": frozenset({1}),
        },
    )
    assert json.loads(console.file.getvalue()) == {  # type: ignore[attr-defined]
        "money": "100",
        "id": "00000000-0000-0000-0000-000000000001",
        "state": "running",
        "at": "2030-01-01T12:00:00+00:00",
        "left": 1.5,
        "none": None,
        "set": [1],
    }
