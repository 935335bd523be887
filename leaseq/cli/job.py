"""job: one job with everything that happened to it."""

import argparse
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from leaseq.cli.jobs import state_of
from leaseq.cli.leases import CONTROL_PLANE
from leaseq.cli.tables import add_json, ago, clock_face, left, moment, money, show_json, show_table
from leaseq.db import clock
from leaseq.queries import jobs
from leaseq.queries.wording import NOTHING, number, span, words
from leaseq.vocabulary import LeaseStatus

NAME = "job"
HELP = "show one job: its timeline, attempts, leases, money and usage"
EXAMPLE = "job 0199e0a1-5c1e-7a52-9c1d-2f6b8d0c4e7a\njob 2f6b8d0c4e7a"
KEY_LENGTH_MIN = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what job takes."""
    parser.add_argument("id", metavar="ID", help="the job's id, or its end as other verbs show it")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the job; returns 1 where none or several have this id."""
    found = jobs.named(options.id) if len(options.id) >= KEY_LENGTH_MIN else []
    if len(found) != 1:
        _say_which(console, options.id, [str(one) for one in found])
        return 1
    page = jobs.page(found[0])
    if options.json:
        show_json(console, page)
        return 0
    now = clock.read()
    _show_head(console, page, now=now)
    _show_timeline(console, page)
    _show_attempts(console, page, now=now)
    _show_leases(console, page, now=now)
    _show_requests(console, page)
    _show_money(console, page, now=now)
    _show_findings(console, page, now=now)
    return 0


def _say_which(console: Console, key: str, found: list[str]) -> None:
    told = Console(file=console.file, stderr=console.stderr, soft_wrap=True)
    if not found:
        told.print(f"No job's id is, begins or ends with {key!r}. See: manage.py leaseq jobs")
        return
    told.print(f"Several jobs' ids begin or end with {key!r}; give one whole:")
    for one in found:
        told.print(f"  {one}")


def _show_head(console: Console, page: jobs.JobPage, *, now: datetime) -> None:
    job = page.job
    console.print(Text(f"Job {job.id}", style="bold"))
    lines = {
        "task": job.task,
        "state": f"{state_of(job)}; {_last_seen(job, now=now)}",
        "of": f"account {job.account}, policy {page.policy}, queue {job.queue}, "
        f"provider {page.provider}, priority {job.priority}",
        "submitted": f"{moment(job.submitted_at)}, {ago(job.submitted_at, now=now)}",
        "time": _times(page.spent),
        "tries": _tries(page.spent),
        "ceiling": f"{money(page.cost_ceiling)} {page.currency}",
    }
    if page.idempotency_key is not None:
        lines["key"] = page.idempotency_key
    if page.queue_deadline_at is not None:
        lines["waits until"] = (
            f"{moment(page.queue_deadline_at)} at the latest, "
            f"{left(page.queue_deadline_at, now=now)} left"
        )
    if page.not_before > now:
        lines["not before"] = f"{moment(page.not_before)}, in {left(page.not_before, now=now)}"
    if page.cancel_asked_at is not None:
        lines["cancel"] = f"asked for {ago(page.cancel_asked_at, now=now)}"
    for name, value in lines.items():
        console.print(Text.assemble((f"  {name:<12}", "dim"), value), soft_wrap=True)
    console.print()


def _last_seen(job: jobs.JobLine, *, now: datetime) -> str:
    if job.ended_at is not None:
        return f"ended {ago(job.ended_at, now=now)}"
    return f"last event {ago(job.changed_at, now=now)}"


def _times(spent: jobs.Spent) -> str:
    def of(pair: tuple[timedelta, timedelta]) -> str:
        return f"{span(pair[0])} of {span(pair[1])}"

    return f"queued {of(spent.queue_time)}, reserved {of(spent.reserved_time)} (closed attempts)"


def _tries(spent: jobs.Spent) -> str:
    tries, renewals = spent.attempts, spent.renewals
    return f"attempts {tries[0]} of {tries[1]}, renewals {renewals[0]} of {renewals[1]}"


def _show_timeline(console: Console, page: jobs.JobPage) -> None:
    began_at = page.job.submitted_at
    show_table(
        console,
        "Timeline",
        columns=[">after", "what", "job is then", "=who", "why"],
        rows=[
            [
                clock_face(one["at"] - began_at),
                words(one["kind"]),
                NOTHING if one["from_state"] == one["to_state"] else words(one["to_state"]),
                _short(one["actor"]),
                words(one["reason"]) if one["reason"] else "",
            ]
            for one in page.events
        ],
        empty="Nothing is recorded.",
    )


def _short(actor: str) -> str:
    """Shorten an actor that ends with an id to the end of it."""
    kind, _, key = actor.partition(":")
    return f"{kind}:{key[-12:]}" if kind == "worker" else actor


def _show_attempts(console: Console, page: jobs.JobPage, *, now: datetime) -> None:
    show_table(
        console,
        "Attempts",
        columns=[">", "outcome", "worker", ">waited", ">ran", "sent", "error"],
        rows=[
            [
                str(one["number"]),
                _outcome(one),
                one["worker"] or NOTHING,
                span((one["claimed_at"] or one["ended_at"] or now) - one["opened_at"]),
                _ran(one, now=now),
                "possibly" if one["possibly_sent"] else "never",
                one["error"].strip().splitlines()[-1] if one["error"].strip() else "",
            ]
            for one in page.attempts
        ],
        empty="None is recorded.",
    )


def _outcome(attempt: dict[str, Any]) -> str:
    said = words(attempt["state"])
    why = attempt["reason"]
    return said if why in (None, attempt["state"]) else f"{said}: {words(why)}"


def _ran(attempt: dict[str, Any], *, now: datetime) -> str:
    if attempt["started_at"] is None:
        return NOTHING
    return span((attempt["ended_at"] or now) - attempt["started_at"])


def _show_leases(console: Console, page: jobs.JobPage, *, now: datetime) -> None:
    show_table(
        console,
        "Leases",
        columns=["of", "owner", "state", ">left", ">renewed", ">fence"],
        rows=[
            [
                one.resource,
                one.owner or CONTROL_PLANE,
                words(one.status),
                left(one.expires_at, now=now) if one.status == LeaseStatus.ACTIVE else "",
                f"{one.renewals} ×",
                one.fence,
            ]
            for one in page.leases
        ],
        empty="It never held a slot or a permit.",
    )


def _show_requests(console: Console, page: jobs.JobPage) -> None:
    if not page.requests:
        return
    show_table(
        console,
        "Provider requests",
        columns=[">", "provider", "state", "provider's id", "detail"],
        rows=[
            [
                str(one["attempt"]),
                "/".join(filter(None, [one["provider"], one["model"]])),
                words(one["state"]),
                one["provider_request_id"] or NOTHING,
                one["detail"],
            ]
            for one in page.requests
        ],
        empty="",
    )


def _show_money(console: Console, page: jobs.JobPage, *, now: datetime) -> None:
    show_table(
        console,
        f"Money in {page.currency}",
        columns=[">authorised", "state", ">held", ">settled", ">released", "why"],
        rows=[
            [
                money(one["amount"]),
                words(one["state"]),
                money(one["held"]),
                money(one["settled"]),
                money(one["released"]),
                words(one["reason"])
                if one["reason"]
                else f"{left(one['expires_at'], now=now)} left",
            ]
            for one in page.holds
        ],
        empty="No hold is recorded.",
    )
    if page.usage:
        show_table(
            console,
            "Usage",
            columns=[">", "unit", ">quantity", ">price", ">cost"],
            rows=list(_usage(page)),
            empty="",
        )


def _usage(page: jobs.JobPage) -> Iterator[list[str]]:
    for one in page.usage:
        yield [
            str(one["attempt"]),
            words(one["unit"]),
            number(one["quantity"]),
            money(one["unit_price"]),
            money(one["cost"]) if one["cost"] is not None else "unpriced",
        ]


def _show_findings(console: Console, page: jobs.JobPage, *, now: datetime) -> None:
    for one in page.findings:
        if one["closed_at"] is None:
            told = f"{words(one['kind'])}, since {ago(one['opened_at'], now=now)}"
            console.print(Text(f"Finding: {told}. {one['suggested_action']}", style="yellow"))
