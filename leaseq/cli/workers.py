"""workers: the processes that run jobs."""

import argparse
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console

from leaseq.cli.tables import add_json, add_limit, ago, show_json, show_table
from leaseq.db import clock
from leaseq.queries import stats
from leaseq.queries.wording import NOTHING, span, tail

NAME = "workers"
HELP = "list the workers that are present, with their slots and leases"
EXAMPLE = "workers\nworkers --all --limit 50"
LIMIT = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what workers takes."""
    parser.add_argument("--all", action="store_true", help="also those that stopped or died")
    add_limit(parser, default=LIMIT, what="workers")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the workers, the latest first; returns 0."""
    now = clock.read()
    found = stats.workers(now=now, also_over=options.all, limit=options.limit)
    if options.json:
        show_json(console, found)
        return 0
    show(console, found, now=now)
    return 0


def show(console: Console, found: Sequence[stats.WorkerLine], *, now: datetime) -> None:
    """Print workers as a table."""
    show_table(
        console,
        "Workers",
        columns=["worker", "=id", "=state", "queues", ">slots", ">leases", ">up", ">seen"],
        rows=[
            [
                one.name,
                tail(one.id),
                "silent" if one.silent else str(one.state),
                ", ".join(one.queues),
                str(one.slots),
                str(one.leases),
                span((one.stopped_at or now) - one.started_at),
                ago(one.seen_at, now=now) if one.stopped_at is None else NOTHING,
            ]
            for one in found
        ],
        empty="None is present. Start one: celery -A yourproject worker -Q yourqueue",
    )
