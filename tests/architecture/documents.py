"""What the documents say that a machine can check: code blocks, files named, tables of moves."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.sources import ROOT, Sin, Source

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
TICKED = re.compile(r"`(?P<text>[^`\n]+)`")
# A word in backticks is a file of ours when it has a folder, or an ending that only files have.
FILE = re.compile(r"[\w.-]*[\w-](/[\w.-]+)+/?|[\w.-]+\.(?:py|md|toml|lock)")
# Where a short name may begin: `rules/renewal.py` is below leaseq, `style.md` beside its reader.
BEGINNINGS = (ROOT, ROOT / "leaseq", ROOT / "docs")
ROW = re.compile(r"^\|\s*(?P<letter>[A-Z]\d*)\s*\|(?P<cells>.+)\|\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced piece of a document: its language, its other words, its text and first line."""

    path: str
    line: int
    language: str
    words: frozenset[str]
    code: str


def blocks(source: Source) -> list[Block]:
    """Give the fenced blocks of a document, in order."""
    return [
        Block(
            path=source.path,
            line=source.text.count("\n", 0, match.start()) + 2,
            language=(match["info"].split() or [""])[0],
            words=frozenset(match["info"].split()[1:]),
            code=match["code"],
        )
        for match in FENCE.finditer(source.text)
    ]


def missing_files(source: Source) -> Iterator[Sin]:
    """Find links and file names that lead nowhere in this checkout."""
    prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), source.text)
    for number, line in enumerate(prose.splitlines(), start=1):
        named = [match["text"] for match in TICKED.finditer(line)]
        named = [text for text in named if FILE.fullmatch(text) and "." in text.rstrip("/")[-6:]]
        linked = [match["target"].partition("#")[0] for match in LINK.finditer(line)]
        linked = [target for target in linked if target and "://" not in target]
        for target in dict.fromkeys((*named, *linked)):
            if not _is_there(target, source):
                yield source.sin(number, "documents name files that exist", f"{target} is missing")


def _is_there(target: str, source: Source) -> bool:
    beside = (ROOT / source.path).parent
    return any((beginning / target).exists() for beginning in (beside, *BEGINNINGS))


def moves(text: str, heading: str) -> set[tuple[str, str]]:
    """Read the pairs (from, to) of the lettered table below a heading; `a, b` are two states."""
    section = re.split(rf"^## {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    found: set[tuple[str, str]] = set()
    for match in ROW.finditer(section):
        before, after = (cell.strip() for cell in match["cells"].split("|")[:2])
        found |= {(one, other) for one in _states(before) for other in _states(after)}
    return found


def _states(cell: str) -> list[str]:
    return [state.strip(" `") for state in cell.split(",")]


def documents() -> list[Source]:
    """Read the documents of this project; the changelog tells of the past and is left out."""
    paths: list[Path] = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]
