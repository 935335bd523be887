"""status: the installation at a glance."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from leaseq.cli import money, workers
from leaseq.cli.tables import add_json, ago, show_json, show_table
from leaseq.db import clock
from leaseq.queries import stats
from leaseq.queries.wording import NOTHING, span, words

NAME = "status"
HELP = "show queues, slots, workers, permits, money and the last passes"
EXAMPLE = "status\nstatus --json"
WORKERS_MAX = 20
MENDS = {
    "open_findings": "see them in the admin, or by job: manage.py leaseq job ID",
    "outcomes_unknown": "followed until there is evidence, or by policy given up",
    "dead_letters": "manage.py leaseq jobs --dead-letter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that status shows, as of one moment."""

    at: datetime
    queues: list[stats.QueueLine]
    workers: list[stats.WorkerLine]
    pools: list[stats.PoolLine]
    accounts: list[stats.AccountLine]
    passes: list[stats.PassLine]
    attention: dict[str, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what status takes."""
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show it all; returns 0."""
    now = clock.read()
    seen = Seen(
        at=now,
        queues=stats.queues(now=now),
        workers=stats.workers(now=now, also_over=False, limit=WORKERS_MAX),
        pools=stats.pools(now=now),
        accounts=stats.accounts(),
        passes=stats.passes(),
        attention=stats.attention(),
    )
    if options.json:
        show_json(console, seen)
        return 0
    _show_queues(console, seen.queues, now=now)
    workers.show(console, seen.workers, now=now)
    show_table(
        console,
        "Permits",
        columns=["pool", ">live", ">limit"],
        rows=[[one.pool, str(one.live), str(one.limit)] for one in seen.pools],
        empty="No pool limits anything.",
    )
    money.show(console, seen.accounts)
    _show_passes(console, seen.passes, now=now)
    _show_attention(console, seen.attention)
    return 0


def _show_queues(console: Console, queues: Sequence[stats.QueueLine], *, now: datetime) -> None:
    show_table(
        console,
        "Queues",
        columns=["queue", ">waiting", ">oldest", ">queued", ">running", ">slots taken", ">free"],
        rows=[
            [
                one.queue,
                str(one.waiting),
                NOTHING if one.oldest_at is None else span(now - one.oldest_at),
                str(one.queued),
                str(one.executing),
                str(one.slots - one.slots_free),
                str(one.slots_free),
            ]
            for one in queues
        ],
        empty="No job waits or runs, and no worker offers a slot.",
    )


def _show_passes(console: Console, passes: Sequence[stats.PassLine], *, now: datetime) -> None:
    show_table(
        console,
        "Control plane",
        columns=["=pass", ">finished", "did"],
        rows=[[one.name, ago(one.finished_at, now=now), did(one.summary)] for one in passes],
        empty="No pass has run yet: start Celery beat, or run manage.py leaseq pass schedule",
    )


def did(summary: Mapping[str, Any]) -> str:
    """Say in words what a pass did."""
    counts = summary.get("counts", {})
    done = ", ".join(f"{words(word)} {times}" for word, times in counts.items() if times)
    rest = "" if summary.get("complete", True) else ("; " if done else "") + "left some for later"
    return (done + rest) or "nothing was due"


def _show_attention(console: Console, attention: Mapping[str, int]) -> None:
    for name, count in attention.items():
        if count:
            console.print(Text(f"{words(name)}: {count} – {MENDS[name]}", style="yellow"))
