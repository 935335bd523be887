"""A terminal of eighty columns that remembers what was shown."""

from io import StringIO

import pytest
from rich.console import Console

from leaseq.cli.main import main


class Terminal:
    """Runs verbs as a user does, and keeps the last output."""

    def __init__(self) -> None:
        self.shown = ""

    def run(self, *argv: str) -> int:
        console = Console(file=StringIO(), width=80, highlight=False)
        status = main(argv, console=console)
        self.shown = console.file.getvalue()  # type: ignore[attr-defined]
        return status

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line that was shown."""
        return [line.split() for line in self.shown.splitlines()]


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()
