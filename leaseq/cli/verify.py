"""verify: every invariant, checked on this installation."""

import argparse

from rich.console import Console
from rich.text import Text

from leaseq.cli.tables import add_json, add_limit, moment, show_json, show_table
from leaseq.queries.verify import Checked, Verified, verify

NAME = "verify"
HELP = "check every invariant on the live database, read only; exit 1 if one is broken"
EXAMPLE = "verify\nverify --json --limit 100"
LIMIT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what verify takes."""
    parser.add_argument(
        "--policies-unchanged",
        action="store_true",
        help="also judge ended leases by their policies; only right where no policy was changed",
    )
    parser.add_argument(
        "--brief", action="store_true", help="show only what is broken, and the verdict"
    )
    add_limit(parser, default=LIMIT, what="rows that break an invariant, of each; all are counted")
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Check and show; returns 0 where nothing is broken, 1 where something is."""
    found = verify(shown_max=options.limit, policies_unchanged=options.policies_unchanged)
    if options.json:
        show_json(console, _as_json(found))
    else:
        if not options.brief:
            _show_all(console, found)
        _show_verdict(console, found)
    return 0 if found.is_green else 1


def _as_json(found: Verified) -> dict[str, object]:
    return {
        "at": found.at,
        "green": found.is_green,
        "invariants": [
            {
                "id": one.invariant.id,
                "sentence": one.invariant.sentence,
                "rows": one.rows,
                "violations": one.violations,
                "shown": one.shown,
            }
            for one in found.checked
        ],
    }


def _show_all(console: Console, found: Verified) -> None:
    show_table(
        console,
        f"Invariants at {moment(found.at)}",
        columns=["=id", "promise", ">rows", ">broken"],
        rows=[
            [
                one.invariant.id,
                one.invariant.sentence,
                str(one.rows),
                str(one.violations) if one.violations else "–",
            ]
            for one in found.checked
        ],
        empty="There are no invariants.",
    )


def _show_verdict(console: Console, found: Verified) -> None:
    for one in found.checked:
        if one.violations:
            _show_broken(console, one)
    broken = sum(1 for one in found.checked if one.violations)
    if broken:
        said = Text(
            f"RED: {broken} of {len(found.checked)} invariants are broken.", style="bold red"
        )
    else:
        said = Text(f"GREEN: all {len(found.checked)} invariants hold.", style="bold green")
    console.print(said)


def _show_broken(console: Console, one: Checked) -> None:
    console.print(Text(f"{one.invariant.id} is broken: {one.invariant.sentence}", style="red"))
    for row in one.shown:
        console.print(Text(f"  {row.what} {row.key}: {row.detail}"), soft_wrap=True)
    unseen = one.violations - len(one.shown)
    if unseen:
        console.print(Text(f"  and {unseen} more; see them with --limit", style="dim"))
    console.print()
