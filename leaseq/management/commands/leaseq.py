"""manage.py leaseq: hands argv to the terminal's own parser (SPEC H4)."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from leaseq.cli.main import DESCRIPTION, main


class Command(BaseCommand):
    """Run one verb of leaseq.cli; its help and errors are the verb's own."""

    help = DESCRIPTION
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own attribute

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from a terminal: exit with the verb's status."""
        try:
            sys.exit(main(argv[2:]))
        finally:
            connections.close_all()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything, for call_command."""
        parser.add_argument("words", nargs="...")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run from code; raises CommandError where the verb's status is not 0."""
        status = main(options["words"])
        if status:
            raise CommandError(f"exit status {status}", returncode=status)
