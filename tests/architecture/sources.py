"""What the house rules look at: the files of this checkout, and what a rule found in one."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE_FOLDERS = ("leaseq", "leaseq_admin", "project", "tests")
OTHER_FOLDERS = ("docs", ".ci")
TEXT_SUFFIXES = frozenset(
    {"", ".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yml"}
)
# Written by `uv sync` and by makemigrations, never by hand.
NOT_OURS = frozenset({"uv.lock", "leaseq/migrations/0001_initial.py"})


@dataclass(frozen=True, order=True)
class Sin:
    """One place that breaks one rule."""

    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


@dataclass(frozen=True)
class Source:
    """A file by its path from the top of the checkout, with its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module; only for Python."""
        return ast.parse(self.text, self.path)

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    def lies_in(self, *places: str) -> bool:
        """Say whether this is one of the named files, or lies below one of the named folders."""
        return any(
            self.path.startswith(place) if place.endswith("/") else self.path == place
            for place in places
        )

    def sin(self, at: ast.AST | int, rule: str, what: str) -> Sin:
        """Report a place: a node of the tree, or a line."""
        line = at if isinstance(at, int) else getattr(at, "lineno", 1)
        return Sin(self.path, line, rule, what)


def all_sources() -> list[Source]:
    """Read every text file of this project, sorted by path."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in (*CODE_FOLDERS, *OTHER_FOLDERS):
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return list(_readable(sorted(found)))


def _readable(paths: list[Path]) -> Iterator[Source]:
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        hidden = path.name.startswith(".") and path.name != ".gitignore"
        if name in NOT_OURS or hidden or "__pycache__" in path.parts:
            continue
        if path.suffix in TEXT_SUFFIXES:
            yield Source(name, path.read_text(encoding="utf-8"))
