"""The argument parser, and dispatch to one module per verb (SPEC H4)."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from django.db import InterfaceError, OperationalError, ProgrammingError
from rich.console import Console

from leaseq.cli import job, jobs, leases, money, passes, schedule, status, verify, workers
from leaseq.conf import settings
from leaseq.db.transactions import connection
from leaseq.errors import LeaseqError, Misconfigured, Unavailable

PROGRAM = "manage.py leaseq"
DESCRIPTION = "Look at, check and run an installation of leaseq from a terminal."
STATUSES = """\
exit status:
  0  it is as asked; for verify: every invariant holds
  1  an invariant is broken, a pass could not handle a row, or there is no such job
  2  wrong arguments, a setting that cannot work, or a database that cannot be reached
"""
REFUSED = 2
INTERRUPTED = 130
# Django reads these before any command does.
OF_DJANGO = ("--settings", "--pythonpath")


class Verb(Protocol):
    """What a verb's module has."""

    NAME: str
    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace, console: Console) -> int: ...


@dataclass
class Printing:
    """A verb whose module prints by itself."""

    module: "PrintingModule"
    NAME: str
    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.module.add_arguments(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        del console
        return self.module.run(options)


class PrintingModule(Protocol):
    """What the module of a printing verb has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int: ...


VERBS: tuple[Verb, ...] = (
    status,
    jobs,
    job,
    leases,
    workers,
    money,
    verify,
    passes,
    Printing(schedule, schedule.NAME, schedule.HELP, "schedule\nschedule --check"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs, each with an example in its help."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, title="verbs")
    for verb in VERBS:
        one = verbs.add_parser(
            verb.NAME,
            help=verb.HELP,
            description=f"{verb.HELP[0].upper()}{verb.HELP[1:]}.",
            epilog=_examples(verb),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(one)
        for option in OF_DJANGO:
            one.add_argument(option, help=argparse.SUPPRESS)
        one.set_defaults(chosen=verb)
    return top


def _examples(verb: Verb) -> str:
    lines = [f"  {PROGRAM} {line}" for line in verb.EXAMPLE.splitlines()]
    return "\n".join(["examples:" if len(lines) > 1 else "example:", *lines])


def main(argv: Sequence[str], *, console: Console | None = None) -> int:
    """Run one verb and return its exit status.

    What can be expected to go wrong is one line on stderr with its mend; a bug of ours is a
    traceback. Raises SystemExit as argparse does, for --help and for wrong arguments.
    """
    options = parser().parse_args(argv)
    chosen: Verb = options.chosen
    try:
        return chosen.run(options, console or Console(highlight=False))
    except (LeaseqError, OperationalError, InterfaceError, ProgrammingError) as error:
        return _refuse(_translated(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _translated(error: Exception) -> LeaseqError:
    if isinstance(error, LeaseqError):
        return error
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    alias = settings().database
    if isinstance(error, ProgrammingError):
        return Misconfigured(
            f"the database has not the tables of this version of leaseq ({said}); "
            "run: manage.py migrate"
        )
    there = connection().settings_dict
    place = f"{there.get('HOST') or 'localhost'}:{there.get('PORT') or 5432}/{there.get('NAME')}"
    return Unavailable(
        f"the database at {place} cannot be used: {said}. "
        f"Start PostgreSQL there, or correct DATABASES[{alias!r}] in your settings"
    )


def _refuse(error: LeaseqError) -> int:
    told = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    told.print(f"{type(error).__name__}: {error}")
    return REFUSED
