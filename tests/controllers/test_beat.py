"""The schedule as data and as rows: complete, collapsing, and the operator's to edit (G1)."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from leaseq.worker import beat, beat_rows
from leaseq.worker.beat_rows import Done, RowState

pytestmark = pytest.mark.django_db
TITLES = ["leaseq: schedule", "leaseq: renew", "leaseq: expire", "leaseq: settle", "leaseq: prune"]


def states() -> dict[str, RowState]:
    return {row.title: row.state for row in beat_rows.look()}


def done(*, reset: bool = False) -> list[Done | None]:
    return [row.done for row in beat_rows.install(reset=reset)]


def test_an_installation_makes_one_enabled_interval_row_for_each_tick() -> None:
    assert set(states().values()) == {RowState.MISSING}
    reports = beat_rows.install(reset=False)
    assert [row.title for row in reports] == TITLES
    assert {row.done for row in reports} == {Done.CREATED}
    for tick in beat.schedule():
        row = PeriodicTask.objects.get(name=tick.title)
        assert (row.task, row.queue, row.enabled) == (beat.PASS_TASK, "leaseq-control", True)
        assert json.loads(row.kwargs) == {"name": tick.name}
        assert row.schedule.run_every == timedelta(seconds=tick.every_seconds)
        assert row.expire_seconds == tick.expires_seconds
    assert set(states().values()) == {RowState.AS_SHIPPED}


def test_a_second_installation_changes_nothing() -> None:
    beat_rows.install(reset=False)
    before = list(PeriodicTask.objects.order_by("pk").values())
    changed = PeriodicTasks.last_change()
    assert done() == [Done.KEPT] * 5
    assert list(PeriodicTask.objects.order_by("pk").values()) == before
    assert PeriodicTasks.last_change() == changed
    assert IntervalSchedule.objects.count() == 3


def edit_interval(row: PeriodicTask) -> None:
    row.interval = IntervalSchedule.objects.create(every=2, period="minutes")


def edit_enabled(row: PeriodicTask) -> None:
    row.enabled = False


def edit_queue(row: PeriodicTask) -> None:
    row.queue = None


def edit_task(row: PeriodicTask) -> None:
    row.task = "leaseq.tasks.something_else"


def edit_kwargs(row: PeriodicTask) -> None:
    row.kwargs = "{}"


def edit_expiry(row: PeriodicTask) -> None:
    row.expire_seconds = None


EDITS: list[tuple[Callable[[Any], None], RowState, str]] = [
    (edit_interval, RowState.EDITED, "runs every 120 s, ships as every 5 s"),
    (edit_expiry, RowState.EDITED, "expires after None s, ships as 30 s"),
    (edit_enabled, RowState.DISABLED, "disabled"),
    (edit_queue, RowState.MISROUTED, "queue is None, ships as leaseq-control"),
    (edit_task, RowState.MISROUTED, "task is leaseq.tasks.something_else"),
    (edit_kwargs, RowState.MISROUTED, "do not name the pass schedule"),
]


@pytest.mark.parametrize(
    ("edit", "state", "told"), EDITS, ids=[edit.__name__ for edit, _, _ in EDITS]
)
def test_an_operators_edit_is_shown_and_kept_until_a_reset_is_asked(
    edit: Callable[[Any], None], state: RowState, told: str
) -> None:
    beat_rows.install(reset=False)
    row = PeriodicTask.objects.get(name="leaseq: schedule")
    edit(row)
    row.save()
    kept = PeriodicTask.objects.filter(pk=row.pk).values().get()

    assert done() == [Done.KEPT] * 5
    assert PeriodicTask.objects.filter(pk=row.pk).values().get() == kept
    [found] = [one for one in beat_rows.look() if one.title == row.name]
    assert found.state == state
    assert told in "; ".join(found.differences)
    assert found.works is (state == RowState.EDITED)

    assert done(reset=True) == [Done.RESET, *[Done.KEPT] * 4]
    assert set(states().values()) == {RowState.AS_SHIPPED}


def test_a_reset_tells_a_running_beat_to_read_its_rows_again() -> None:
    beat_rows.install(reset=False)
    PeriodicTask.objects.filter(name="leaseq: expire").update(enabled=False)
    before = PeriodicTasks.last_change()
    beat_rows.install(reset=True)
    assert PeriodicTasks.last_change() > before


def test_rows_of_the_operator_are_left_alone() -> None:
    interval = IntervalSchedule.objects.create(every=5, period="seconds")
    IntervalSchedule.objects.create(every=5, period="seconds")
    theirs = PeriodicTask.objects.create(name="theirs", task="their.task", interval=interval)
    before = PeriodicTask.objects.filter(pk=theirs.pk).values().get()
    beat_rows.install(reset=True)
    assert PeriodicTask.objects.filter(pk=theirs.pk).values().get() == before


@pytest.mark.parametrize(
    ("sweep_seconds", "expire_every", "renew_every"),
    [(0.5, (500_000, "microseconds"), 0.5), (5, (5, "seconds"), 5), (20, (20, "seconds"), 5)],
    ids=["half-a-second", "five-seconds", "twenty-seconds"],
)
def test_the_sweep_comes_as_often_as_the_settings_say(
    sweep_seconds: float, expire_every: tuple[int, str], renew_every: float
) -> None:
    with override_settings(LEASEQ={"SWEEP_SECONDS": sweep_seconds}):
        beat_rows.install(reset=False)
        assert beat.renew_seconds() == renew_every
    interval = PeriodicTask.objects.get(name="leaseq: expire").interval
    assert (interval.every, interval.period) == expire_every


def test_the_schedule_as_data_says_what_the_rows_say() -> None:
    beat_rows.install(reset=False)
    data = beat.beat_schedule()
    assert list(data) == TITLES
    for row in PeriodicTask.objects.all():
        entry = data[row.name]
        assert entry["task"] == row.task
        assert entry["kwargs"] == json.loads(row.kwargs)
        assert timedelta(seconds=entry["schedule"]) == row.schedule.run_every
        assert entry["options"] == {"queue": row.queue, "expires": row.expire_seconds}


def test_a_backlog_of_an_outage_collapses_to_a_few_dozen_messages() -> None:
    kept = [tick.expires_seconds / tick.every_seconds for tick in beat.schedule()]
    assert sum(kept) <= 36
    assert all(tick.expires_seconds >= tick.every_seconds for tick in beat.schedule())
