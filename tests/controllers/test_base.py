"""What every pass does with rows, time and failures (SPEC G1, case D8)."""

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError

from leaseq.controllers import base
from leaseq.controllers.base import Page, PassLimits, PassRun
from leaseq.errors import LeaseqBug
from leaseq.models import ControlPass

pytestmark = pytest.mark.django_db

ROWS = [UUID(int=number) for number in range(1, 8)]


class HandClock:
    """A monotonic clock that moves only when it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    hands = HandClock()
    monkeypatch.setattr(base, "monotonic", hands)
    return hands


def paged(rows: Sequence[UUID], *, batch: int) -> Page:
    def page(after: str) -> list[tuple[str, UUID]]:
        return [(str(row), row) for row in rows if str(row) > after][:batch]

    return page


def walk(
    act: Callable[[UUID], str], *, batch: int = 3, seconds: float = 60, rows: Sequence[UUID] = ROWS
) -> base.PassSummary:
    run = PassRun("try", limits=PassLimits(batch=batch, seconds=seconds))
    run.walk("rows", page=paged(rows, batch=batch), act=act)
    return run.finish()


@pytest.mark.parametrize("batch", [1, 3, 6, 7, 8], ids=lambda batch: f"batch-of-{batch}")
def test_a_walk_takes_every_row_once_whatever_the_size_of_its_pages(batch: int) -> None:
    taken: list[UUID] = []

    def take(row: UUID) -> str:
        taken.append(row)
        return "taken"

    summary = walk(take, batch=batch)
    assert taken == ROWS
    assert summary.counts == {"taken": 7}
    assert summary.complete


@pytest.mark.parametrize(
    "failure",
    [LeaseqBug("broken"), IntegrityError("refused"), OperationalError("deadlock")],
    ids=["bug", "integrity", "operational"],
)
def test_a_row_that_fails_is_logged_counted_and_stops_nobody_else(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def take(row: UUID) -> str:
        if row == ROWS[1]:
            raise failure
        return "taken"

    with caplog.at_level(logging.ERROR):
        summary = walk(take, batch=2)
    assert summary.counts == {"errors": 1, "taken": 6}
    [record] = caplog.records
    assert str(ROWS[1]) in record.getMessage()
    assert "pass try" in record.getMessage()


def test_a_failure_that_is_not_of_one_row_ends_the_pass_and_nothing_says_it_finished() -> None:
    def take(row: UUID) -> str:
        raise ValueError(row)

    with pytest.raises(ValueError, match=str(ROWS[0])):
        walk(take)
    assert not ControlPass.objects.exists()


def test_a_finished_pass_writes_when_it_finished_and_what_it_did() -> None:
    walk(lambda row: "taken")
    row = ControlPass.objects.get(name="try")
    assert row.summary == {"counts": {"taken": 7}, "complete": True, "left_off": {}}
    first = row.finished_at
    walk(lambda row: "seen")
    row.refresh_from_db()
    assert row.finished_at > first
    assert row.summary["counts"] == {"seen": 7}


def test_a_pass_out_of_time_goes_on_behind_its_last_row_and_then_from_the_start(
    hand_clock: HandClock,
) -> None:
    taken: list[UUID] = []

    def take(row: UUID) -> str:
        taken.append(row)
        hand_clock.seconds += 10
        return "taken"

    first = walk(take, seconds=30)
    assert taken == ROWS[:3]
    assert not first.complete

    second = walk(take, seconds=30)
    assert taken[3:] == ROWS[3:6]
    assert not second.complete

    third = walk(take, seconds=1000)
    assert taken[6:] == [ROWS[6], *ROWS[:6]]
    assert third.complete
    assert third.counts == {"taken": 7}


@pytest.mark.parametrize(
    ("spent", "taken_rows"),
    [(4.999, 7), (5.0, 1), (5.001, 1)],
    ids=["just-before-the-limit", "at-the-limit", "after-the-limit"],
)
def test_a_pass_begins_nothing_more_once_its_time_is_up(
    hand_clock: HandClock, spent: float, taken_rows: int
) -> None:
    def take(row: UUID) -> str:
        if row == ROWS[0]:
            hand_clock.seconds += spent
        return "taken"

    summary = walk(take, seconds=5.0)
    assert summary.counts == {"taken": taken_rows}
    assert summary.complete is (taken_rows == len(ROWS))


def test_a_pass_without_time_still_takes_one_row_so_that_it_gets_on() -> None:
    assert walk(lambda row: "taken", seconds=0).counts == {"taken": 1}


def test_a_part_that_needs_all_the_time_leaves_the_next_its_share(
    hand_clock: HandClock,
) -> None:
    run = PassRun("try", limits=PassLimits(batch=3, seconds=20))

    def take(row: UUID) -> str:
        hand_clock.seconds += 5
        return "taken"

    run.share(parts=2)
    run.walk("first", page=paged(ROWS, batch=3), act=take)
    run.share(parts=1)
    run.walk("second", page=paged(ROWS, batch=3), act=lambda row: "seen")
    summary = run.finish()
    assert summary.counts == {"taken": 2, "seen": 7}
    assert not summary.complete
