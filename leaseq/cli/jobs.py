"""jobs: a list of jobs, the latest first."""

import argparse
from datetime import datetime

from rich.console import Console

from leaseq.cli.tables import add_json, add_limit, show_json, show_table
from leaseq.db import clock
from leaseq.queries import jobs
from leaseq.queries.wording import span, tail, words
from leaseq.vocabulary import JobState

NAME = "jobs"
HELP = "list jobs, the latest first, by state, account or queue"
EXAMPLE = "jobs --state open --queue gpu\njobs --state failed --account acme --limit 50"
LIMIT = 20
OPEN = "open"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what jobs takes."""
    parser.add_argument(
        "--state",
        choices=[OPEN, *(str(state) for state in JobState)],
        metavar="STATE",
        help=f"only jobs that are: {OPEN} (not ended), {', '.join(JobState)}",
    )
    parser.add_argument("--account", metavar="NAME", help="only jobs of this account")
    parser.add_argument("--queue", metavar="NAME", help="only jobs of this queue")
    parser.add_argument("--dead-letter", action="store_true", help="only dead letters")
    add_limit(parser, default=LIMIT, what="jobs")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the jobs; returns 0."""
    now = clock.read()
    found = jobs.listed(
        limit=options.limit,
        states=_states(options.state),
        account=options.account,
        queue=options.queue,
        only_dead_letters=options.dead_letter,
    )
    if options.json:
        show_json(console, found)
        return 0
    show_table(
        console,
        "Jobs",
        columns=["=job", "task", "account", "queue", "state", ">try", ">age"],
        rows=[_row(one, now=now) for one in found],
        empty="There is no such job.",
    )
    if len(found) == options.limit:
        console.print(f"Only the latest {options.limit}; more with --limit.", style="dim")
    return 0


def _states(asked: str | None) -> frozenset[JobState] | None:
    if asked is None:
        return None
    return jobs.not_ended() if asked == OPEN else frozenset({JobState(asked)})


def _row(one: jobs.JobLine, *, now: datetime) -> list[str]:
    return [
        tail(one.id),
        one.task,
        one.account,
        one.queue,
        state_of(one),
        str(one.attempts),
        span(now - one.submitted_at),
    ]


def state_of(one: jobs.JobLine) -> str:
    """Say where a job stands, and why it ended where the state does not say so."""
    said = words(one.state)
    if one.reason not in (None, one.state):
        said += f": {words(one.reason)}"
    return f"{said} (dead letter)" if one.dead_letter else said
