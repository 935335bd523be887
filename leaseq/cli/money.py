"""money: what each account may spend, holds and has settled."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from leaseq.cli.tables import add_json, show_json, show_table
from leaseq.cli.tables import money as exact
from leaseq.queries import stats

NAME = "money"
HELP = "show the money of each account: limit, held, settled and available"
EXAMPLE = "money\nmoney --account acme --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what money takes."""
    parser.add_argument("--account", metavar="NAME", help="only this account")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the accounts; returns 1 where the one asked for is not there."""
    found = stats.accounts(name=options.account)
    if options.json:
        show_json(console, found)
    else:
        show(console, found)
    return 1 if options.account is not None and not found else 0


def show(console: Console, found: Sequence[stats.AccountLine]) -> None:
    """Print accounts as a table."""
    show_table(
        console,
        "Money",
        columns=["account", "", ">limit", ">held", ">settled", ">available", ">open holds"],
        rows=[
            [
                one.account if one.is_open else f"{one.account} (closed)",
                one.currency,
                exact(one.limit),
                exact(one.held),
                exact(one.settled),
                exact(one.available),
                str(one.open_holds),
            ]
            for one in found
        ],
        empty="There is no such account. Create accounts in the admin.",
    )
