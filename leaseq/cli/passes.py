"""pass: one pass of the control plane, run by hand."""

import argparse

from rich.console import Console

from leaseq.cli.status import did
from leaseq.cli.tables import add_json, show_json
from leaseq.controllers.base import ERRORS, PassLimits
from leaseq.worker import control

NAME = "pass"
HELP = "run one pass of the control plane by hand; safe beside beat and at any time"
EXAMPLE = "pass schedule\npass settle --seconds 60"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what pass takes."""
    parser.add_argument("pass_name", choices=sorted(control.PASSES), help="which pass to run")
    parser.add_argument(
        "--seconds",
        type=float,
        default=PassLimits().seconds,
        help="begin nothing new after this long (default %(default)g)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=PassLimits().batch,
        metavar="N",
        help="take this many rows at once (default %(default)d)",
    )
    add_json(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run it and say what it did; returns 1 where a row could not be handled."""
    limits = PassLimits(batch=options.batch, seconds=options.seconds)
    done = control.run(options.pass_name, limits=limits)
    if options.json:
        show_json(console, done)
    else:
        console.print(f"{done.name}: {did({'counts': done.counts, 'complete': done.complete})}")
    return 1 if done.counts.get(ERRORS) else 0
