"""The default schedule of the control plane, as data (SPEC G1).

Every tick may come twice, late or not at all: each pass is safe to repeat and catches up.
"""

import math
from dataclasses import dataclass
from typing import Any

from leaseq.conf import settings

PASS_TASK = "leaseq.tasks.run_pass"  # noqa: S105 - a task's name
SCHEDULE_SECONDS = 5.0
RENEW_SECONDS = 5.0
SETTLE_SECONDS = 10.0
PRUNE_SECONDS = 3600.0
EXPIRES_SECONDS_MIN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One pass of the control plane, how often it is asked for, and why that often."""

    name: str
    every_seconds: float
    note: str

    @property
    def title(self) -> str:
        """The name of its row or entry in a beat schedule."""
        return f"leaseq: {self.name}"

    @property
    def expires_seconds(self) -> int:
        """After how long a message that nobody took is dropped, so that a backlog collapses.

        A worker judges that by its own wall clock, which may differ from the beat's; so it is
        never short, and a backlog is at most a few dozen passes that find nothing to do.
        """
        return max(math.ceil(self.every_seconds), EXPIRES_SECONDS_MIN)


def renew_seconds() -> float:
    """Return how often the permits of queued jobs are renewed.

    Every policy's lease_ttl must be at least twice this (check leaseq.W005). An installation
    that sweeps faster, for short leases, renews as fast.
    """
    return min(RENEW_SECONDS, settings().sweep_seconds)


def schedule() -> list[Tick]:
    """Return the ticks of the control plane; the settings decide how often it sweeps."""
    return [
        Tick(
            name="schedule",
            every_seconds=SCHEDULE_SECONDS,
            note="Queues waiting jobs and sends their messages; mostly rung between ticks.",
        ),
        Tick(
            name="renew",
            every_seconds=renew_seconds(),
            note="Renews permits of queued jobs: at most half of the smallest lease_ttl.",
        ),
        Tick(
            name="expire",
            every_seconds=settings().sweep_seconds,
            note="Sweeps what ran out; SWEEP_SECONDS of LEASEQ when the row was made.",
        ),
        Tick(
            name="settle",
            every_seconds=SETTLE_SECONDS,
            note="Closes the holds of ended jobs; mostly rung between ticks.",
        ),
        Tick(
            name="prune",
            every_seconds=PRUNE_SECONDS,
            note="Erases payloads and results after RETENTION_DAYS of LEASEQ.",
        ),
    ]


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Return the schedule as Celery's own `beat_schedule`, for a beat without the database.

    Use it so: `app.conf.beat_schedule = leaseq.worker.beat.beat_schedule()`. Not together with
    django-celery-beat, which would write it over an operator's rows at every start.
    """
    return {
        tick.title: {
            "task": PASS_TASK,
            "schedule": tick.every_seconds,
            "kwargs": {"name": tick.name},
            "options": {"queue": settings().control_queue, "expires": tick.expires_seconds},
        }
        for tick in schedule()
    }
