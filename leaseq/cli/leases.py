"""leases: who holds what, and for how long."""

import argparse
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console

from leaseq.cli.tables import add_json, add_limit, left, show_json, show_table
from leaseq.db import clock
from leaseq.queries import stats
from leaseq.queries.wording import tail

NAME = "leases"
HELP = "list the active leases of slots and permits, those that run out first"
EXAMPLE = "leases\nleases --worker gpu1@host"
LIMIT = 50
CONTROL_PLANE = "control plane"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what leases takes."""
    parser.add_argument("--worker", metavar="NAME", help="only those of this worker")
    add_limit(parser, default=LIMIT, what="leases")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the leases; returns 0."""
    now = clock.read()
    found = stats.leases(limit=options.limit, worker=options.worker)
    if options.json:
        show_json(console, found)
        return 0
    show(console, found, now=now)
    return 0


def show(console: Console, found: Sequence[stats.LeaseLine], *, now: datetime) -> None:
    """Print active leases as a table."""
    show_table(
        console,
        "Active leases",
        columns=["of", "=job", "owner", ">left", ">renewed", ">fence"],
        rows=[
            [
                one.resource,
                tail(one.job_id),
                one.owner or CONTROL_PLANE,
                left(one.expires_at, now=now),
                f"{one.renewals} ×",
                one.fence,
            ]
            for one in found
        ],
        empty="Nothing is held.",
    )
