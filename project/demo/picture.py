"""What the demo shows while it runs: queues, leases with their time left, tokens and money."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.db.models import Count, Sum
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leaseq.db import clock
from leaseq.models import Account, Attempt, Job, Lease, UsageRecord
from leaseq.rules.money import plain
from leaseq.vocabulary import (
    EXECUTING_JOB_STATES,
    TERMINAL_JOB_STATES,
    JobState,
    LeaseStatus,
    ResourceType,
)

WAITING = (JobState.ADMITTED, JobState.RESERVED, JobState.QUEUED)
COLOURS = {
    JobState.COMPLETED: "green",
    JobState.RUNNING: "cyan",
    JobState.FAILED: "red",
    JobState.EXPIRED: "red",
    JobState.CANCELLED: "yellow",
}


@dataclass
class Scene:
    """One look at the database."""

    now: datetime
    states: dict[JobState, int]
    unsettled: int
    tokens: int
    leases: list[Lease]
    accounts: list[Account]
    lost_attempts: int

    @property
    def total(self) -> int:
        """All jobs."""
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        """Jobs in a state that ends them."""
        return sum(self.states.get(state, 0) for state in TERMINAL_JOB_STATES)

    @property
    def running(self) -> int:
        """Jobs that a worker owns."""
        return sum(self.states.get(state, 0) for state in EXECUTING_JOB_STATES)

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return sum(self.states.get(state, 0) for state in WAITING)


@dataclass
class Notes:
    """What the demo itself did, to be read beside the figures."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)


def look() -> Scene:
    """Read what stands in the database now."""
    states = Job.objects.order_by().values_list("state").annotate(Count("id"))
    booked = UsageRecord.objects.filter(unit="completion_token").aggregate(n=Sum("quantity"))
    running = Attempt.objects.filter(state="open").exclude(progress={})
    seen = sum(one.progress.get("tokens", 0) for one in running)
    leases = Lease.objects.filter(status=LeaseStatus.ACTIVE, resource_type=ResourceType.SLOT)
    return Scene(
        now=clock.read(),
        states={JobState(state): count for state, count in states},
        unsettled=Job.objects.filter(settled_at__isnull=True).count(),
        tokens=int(booked["n"] or 0) + seen,
        leases=list(leases.select_related("job", "slot", "attempt").order_by("slot")),
        accounts=list(Account.objects.order_by("name")),
        lost_attempts=Attempt.objects.filter(state="lost").count(),
    )


def line(scene: Scene) -> str:
    """Say a scene in one line, for where no picture can be drawn."""
    held = sum((one.held for one in scene.accounts), Decimal(0))
    settled = sum((one.settled for one in scene.accounts), Decimal(0))
    return (
        f"{scene.waiting} wait, {scene.running} run, {scene.ended}/{scene.total} ended; "
        f"{scene.tokens} tokens; EUR {plain(held)} held, {plain(settled)} settled"
    )


def picture(scene: Scene, notes: Notes) -> RenderableType:
    """Draw a scene."""
    bar = Table.grid(padding=(0, 2))
    counts = Text("  ").join(
        Text(f"{state.replace('_', ' ')} {count}", style=COLOURS.get(state, ""))
        for state, count in sorted(scene.states.items())
    )
    bar.add_row(ProgressBar(total=scene.total, completed=scene.ended, width=30), counts)
    return Panel(
        Group(bar, _slots(scene), _money(scene), *(Text(one) for one in notes.lines[-4:])),
        title=f"leaseq demo · {scene.ended} of {scene.total} jobs ended · {scene.tokens} tokens",
        title_align="left",
    )


def _slots(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="Capacity leases", title_justify="left")
    for heading in ("slot", "job", "try", "state", "lease ends in", "renewed"):
        table.add_column(heading)
    for lease in scene.leases:
        left = (lease.expires_at - scene.now).total_seconds()
        table.add_row(
            lease.slot.unit if lease.slot else "",
            f"…{str(lease.job_id)[-8:]}",
            str(lease.attempt.number),
            lease.job.state.replace("_", " "),
            f"{left:.1f} s" if left > 0 else Text("expired", style="red"),
            f"{lease.renewal_count} times",
        )
    return table


def _money(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, title="Money", title_justify="left")
    table.add_column("account")
    for heading in ("limit", "free", "held", "settled"):
        table.add_column(heading, justify="right")
    for one in scene.accounts:
        free = one.limit - one.held - one.settled
        amounts = [plain(amount) for amount in (one.limit, free, one.held, one.settled)]
        table.add_row(one.name, *amounts)
    return table
