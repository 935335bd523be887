"""The end of the demo: what each account and policy did, and whether it all adds up."""

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Count
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from leaseq.models import Account, Attempt, Hold, Job, UsageRecord
from leaseq.queries.money import rebuilt_balances
from leaseq.rules.money import plain
from leaseq.vocabulary import Book

ZERO = Decimal(0)


@dataclass
class Row:
    """One account and policy."""

    jobs: int = 0
    completed: int = 0
    attempts: int = 0
    tokens_in: Decimal = ZERO
    tokens_out: Decimal = ZERO
    authorised: Decimal = ZERO
    held: Decimal = ZERO
    settled: Decimal = ZERO
    released: Decimal = ZERO
    cost: Decimal = ZERO


def rows() -> dict[tuple[str, str], Row]:
    """Gather every job with its attempts, usage and hold, by account and policy."""
    gathered: dict[tuple[str, str], Row] = defaultdict(Row)
    key_of = {}
    for job in Job.objects.select_related("account", "policy"):
        key_of[job.pk] = job.account.name, job.policy.name
        row = gathered[key_of[job.pk]]
        row.jobs += 1
        row.completed += job.state == "completed"
    for attempt in Attempt.objects.all():
        gathered[key_of[attempt.job_id]].attempts += 1
    for line in UsageRecord.objects.select_related("attempt"):
        row = gathered[key_of[line.attempt.job_id]]
        row.tokens_in += line.quantity if line.unit == "prompt_token" else 0
        row.tokens_out += line.quantity if line.unit == "completion_token" else 0
        row.cost += line.cost or ZERO
    for hold in Hold.objects.all():
        row = gathered[key_of[hold.job_id]]
        row.authorised += hold.amount
        row.held += hold.held
        row.settled += hold.settled
        row.released += hold.released
    return dict(sorted(gathered.items()))


def tables(gathered: dict[tuple[str, str], Row]) -> list[Table]:
    """Draw the work and the money, each with its sum."""
    total = Row()
    for row in gathered.values():
        for name in Row.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    work = _empty("What was done (tokens in, out)", "jobs", "completed", "attempts", "in", "out")
    money = _empty("What it cost (EUR)", "authorised", "held", "settled", "released")
    for key, row in [*gathered.items(), (("all", ""), total)]:
        if row is total:
            work.add_section()
            money.add_section()
        counts = (row.jobs, row.completed, row.attempts, int(row.tokens_in), int(row.tokens_out))
        work.add_row(*key, *(str(count) for count in counts))
        amounts = (row.authorised, row.held, row.settled, row.released)
        money.add_row(*key, *(plain(amount) for amount in amounts))
    return [work, money]


def _empty(title: str, *columns: str) -> Table:
    drawn = Table(title=title, title_justify="left", box=SIMPLE)
    drawn.add_column("account")
    drawn.add_column("policy")
    for column in columns:
        drawn.add_column(column, justify="right")
    return drawn


def answers(count: int) -> list[tuple[str, str]]:
    """Return a few prompts with the model's answers, each in one line."""
    done = Attempt.objects.filter(state="completed").select_related("job").order_by("number", "pk")
    return [
        (escape(one.job.payload["args"][0]), escape(" ".join(one.result["text"].split())))
        for one in done[:count]
        if one.result
    ]


def other_endings() -> str:
    """Say how many attempts ended otherwise than completed, by outcome and reason."""
    ended = Attempt.objects.exclude(state="completed").order_by()
    counts = ended.values_list("state", "reason").annotate(Count("id"))
    return ", ".join(f"{count} {state} ({reason})" for state, reason, count in counts)


def imbalances(gathered: dict[tuple[str, str], Row]) -> list[str]:
    """Say everything that does not add up; an empty list is what a sound run gives."""
    wrong = []
    for key, row in gathered.items():
        if row.authorised != row.held + row.settled + row.released:
            wrong.append(f"{key}: authorised is not held + settled + released")
        if row.held:
            wrong.append(f"{key}: {plain(row.held)} is still held though every job has ended")
        if row.settled != row.cost:
            wrong.append(f"{key}: settled {plain(row.settled)}, used {plain(row.cost)}")
    for account in Account.objects.all():
        mine = [row for (name, _), row in gathered.items() if name == account.name]
        books = rebuilt_balances(account)
        if (account.held, account.settled) != (books[Book.HELD], books[Book.SETTLED]):
            wrong.append(f"{account.name}: the balances differ from the ledger")
        if account.settled != sum((row.settled for row in mine), ZERO):
            wrong.append(f"{account.name}: the account and its holds differ")
    return wrong
