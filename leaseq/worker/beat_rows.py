"""The schedule as rows of django-celery-beat, which an operator may edit (SPEC G1).

The package is optional, so its models are looked up among the installed apps.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.apps import apps

from leaseq.conf import settings
from leaseq.worker import beat
from leaseq.worker.beat import Tick

APP = "django_celery_beat"
SECONDS_OF = {
    "days": 86_400.0,
    "hours": 3_600.0,
    "minutes": 60.0,
    "seconds": 1.0,
    "microseconds": 1e-6,
}


class RowState(StrEnum):
    """How a row of the schedule stands against the schedule that ships."""

    AS_SHIPPED = "as_shipped"
    EDITED = "edited"
    DISABLED = "disabled"
    MISROUTED = "misrouted"
    MISSING = "missing"


class Done(StrEnum):
    """What an installation did to one row."""

    CREATED = "created"
    KEPT = "kept"
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """One row by its name, how it stands, how it differs, and what was done to it, if asked."""

    title: str
    state: RowState
    differences: tuple[str, ...] = ()
    done: Done | None = None

    @property
    def works(self) -> bool:
        """Say whether beat sends this tick to where the control plane listens."""
        return self.state in (RowState.AS_SHIPPED, RowState.EDITED)


def is_installed() -> bool:
    """Say whether django-celery-beat is among the installed apps."""
    return apps.is_installed(APP)


def look() -> list[RowReport]:
    """Say of each row how it stands; changes nothing."""
    rows = {row.name: row for row in _titled()}
    return [_report(tick, rows.get(tick.title)) for tick in beat.schedule()]


def install(*, reset: bool) -> list[RowReport]:
    """Create the rows that are missing; an operator's edit is kept, unless `reset` is asked.

    Safe to repeat, and for two at once. A reset makes every row as it ships, enabled.
    """
    reports = []
    for tick in beat.schedule():
        row, created = model("PeriodicTask").objects.get_or_create(
            name=tick.title, defaults=_fields(tick)
        )
        done = Done.CREATED if created else Done.KEPT
        found = _report(tick, row)
        if reset and found.differences:
            for name, value in _fields(tick).items():
                setattr(row, name, value)
            # Not an UPDATE: saving tells a running beat to read its rows again.
            row.save()
            done, found = Done.RESET, _report(tick, row)
        reports.append(
            RowReport(
                title=found.title, state=found.state, differences=found.differences, done=done
            )
        )
    return reports


def model(name: str) -> Any:
    """Return a model of django-celery-beat; call it only where that is installed."""
    return apps.get_model(APP, name)


def _titled() -> Any:
    titles = [tick.title for tick in beat.schedule()]
    return model("PeriodicTask").objects.filter(name__in=titles).select_related("interval")


def _fields(tick: Tick) -> dict[str, Any]:
    return {
        "task": beat.PASS_TASK,
        "kwargs": json.dumps({"name": tick.name}),
        "args": "[]",
        "queue": settings().control_queue,
        "interval": _interval(tick.every_seconds),
        "crontab": None,
        "solar": None,
        "clocked": None,
        "one_off": False,
        "expires": None,
        "expire_seconds": tick.expires_seconds,
        "enabled": True,
        "description": tick.note,
    }


def _interval(seconds: float) -> Any:
    """Return the interval row of this length; the package allows several of one length."""
    whole = seconds == int(seconds)
    every, period = (int(seconds), "seconds") if whole else (round(seconds * 1e6), "microseconds")
    intervals = model("IntervalSchedule").objects
    found = intervals.filter(every=every, period=period).order_by("pk").first()
    return found or intervals.create(every=every, period=period)


def _report(tick: Tick, row: Any) -> RowReport:
    if row is None:
        return RowReport(title=tick.title, state=RowState.MISSING)
    astray = _astray(tick, row)
    differences = (*astray, *_edits(tick, row))
    state = RowState.EDITED if differences else RowState.AS_SHIPPED
    if astray:
        state = RowState.MISROUTED
    elif not row.enabled:
        state = RowState.DISABLED
    return RowReport(title=tick.title, state=state, differences=differences)


def _astray(tick: Tick, row: Any) -> list[str]:
    found = []
    if row.task != beat.PASS_TASK:
        found.append(f"task is {row.task}, ships as {beat.PASS_TASK}")
    if row.queue != settings().control_queue:
        found.append(f"queue is {row.queue}, ships as {settings().control_queue}")
    if _asked_pass(row) != tick.name:
        found.append(f"kwargs are {row.kwargs}, and do not name the pass {tick.name}")
    return found


def _asked_pass(row: Any) -> object:
    try:
        kwargs = json.loads(row.kwargs)
    except ValueError:
        return None
    return kwargs.get("name") if isinstance(kwargs, dict) else None


def _edits(tick: Tick, row: Any) -> list[str]:
    found = []
    if not row.enabled:
        found.append("disabled")
    if row.interval is None:
        found.append(f"runs {row.schedule}, ships as every {tick.every_seconds:g} s")
    else:
        every = row.interval.every * SECONDS_OF[row.interval.period]
        if abs(every - tick.every_seconds) > 1e-6:  # noqa: PLR2004 - one microsecond
            found.append(f"runs every {every:g} s, ships as every {tick.every_seconds:g} s")
    if row.expire_seconds != tick.expires_seconds:
        found.append(f"expires after {row.expire_seconds} s, ships as {tick.expires_seconds} s")
    if row.one_off:
        found.append("runs once only")
    return found
