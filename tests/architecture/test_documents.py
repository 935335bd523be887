"""The documents say what is true: their code runs, their files exist, their tables agree."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

import pytest
from django.core.management import load_command_class

from leaseq.rules import transitions
from tests.architecture.documents import Block, blocks, documents, missing_files, moves
from tests.architecture.sources import ROOT, Source

README_LINES_MAX = 150
DOCUMENTS = documents()
PYTHON = [one for each in DOCUMENTS for one in blocks(each) if one.language == "python"]
STATES = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
PROGRAM = ("manage.py", "leaseq")
VERB = re.compile(r"manage\.py leaseq (?P<verb>[a-z][a-z-]*)")


def place(block: Block) -> str:
    return f"{block.path}:{block.line}"


def as_written(block: Block) -> str:
    """The code on the lines that it has in its document, so that an error names them."""
    return "\n" * (block.line - 1) + block.code


def help_of(words: Iterable[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Ask the command for help as a user does."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        load_command_class("leaseq", "leaseq").run_from_argv([*PROGRAM, *words, "--help"])
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def verbs(told: str) -> list[str]:
    """Read the verbs out of the command's own help."""
    listed = re.search(r"\{([a-z,-]+)\}", told)
    return listed[1].split(",") if listed else []


def shows_an_example(told: str, verb: str) -> bool:
    """Whether a help text has an example that can be copied."""
    _, marked, examples = told.lower().partition("example")
    return bool(marked) and f"manage.py leaseq {verb}" in examples


@pytest.mark.parametrize("block", PYTHON, ids=[place(one) for one in PYTHON])
def test_python_in_the_documents_compiles(block: Block) -> None:
    compile(as_written(block), block.path, "exec")


@pytest.mark.django_db
@pytest.mark.usefixtures("account", "policy")
def test_python_that_is_marked_run_runs() -> None:
    for block in PYTHON:
        if "run" in block.words:
            code = compile(as_written(block), block.path, "exec")
            exec(code, {"__name__": "document"})  # noqa: S102 - our own document


@pytest.mark.parametrize("document", DOCUMENTS, ids=[one.path for one in DOCUMENTS])
def test_documents_name_files_that_exist(document: Source) -> None:
    sins = list(missing_files(document))
    if sins:
        pytest.fail("\n".join(map(str, sins)), pytrace=False)


def test_the_readme_is_read_in_five_minutes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= README_LINES_MAX


def test_the_readme_shows_a_program() -> None:
    assert [block for block in PYTHON if block.path == "README.md"]


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    known = verbs(help_of([], capsys))
    assert known, "the help of `manage.py leaseq` lists no verbs"
    lacking = [verb for verb in known if not shows_an_example(help_of([verb], capsys), verb)]
    assert lacking == [], "no example in the help of these"


def test_the_documents_use_verbs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    known = verbs(help_of([], capsys))
    used = {match["verb"] for one in DOCUMENTS for match in VERB.finditer(one.text)}
    assert used - set(known) == set()


@pytest.mark.parametrize(
    ("heading", "tables"),
    [
        ("Job", (transitions.JOB_MOVES, transitions.READMISSION_MOVES)),
        ("Attempt", (transitions.ATTEMPT_MOVES,)),
        ("Lease", (transitions.LEASE_MOVES,)),
        ("Hold", (transitions.HOLD_MOVES,)),
        ("Provider request", (transitions.REQUEST_MOVES,)),
    ],
    ids=["job", "attempt", "lease", "hold", "request"],
)
def test_the_lettered_tables_are_the_legal_moves(
    heading: str, tables: Iterable[Mapping[StrEnum, frozenset[StrEnum]]]
) -> None:
    legal = {
        (str(before), str(after))
        for table in tables
        for before, ends in table.items()
        for after in ends
    }
    assert moves(STATES, heading) == legal


def test_a_file_that_is_missing_is_named_with_its_line() -> None:
    document = Source(
        "docs/sample.md",
        "See `manage.py` and [this](style.md#one).\n```\n`gone/a.py`\n```\n"
        "See `leaseq/rules/gone.py` and [that](gone.md), not `a/b` or [x](https://a.example/b.py).\n",
    )
    assert [(sin.line, sin.what) for sin in missing_files(document)] == [
        (5, "leaseq/rules/gone.py is missing"),
        (5, "gone.md is missing"),
    ]


def test_code_blocks_are_found_with_their_words_and_lines() -> None:
    document = Source("a.md", "x\n```python run\na = 1\n```\n```console\n$ ls\n```\n")
    first, second = blocks(document)
    assert (first.language, first.words, first.code, first.line) == (
        "python",
        frozenset({"run"}),
        "a = 1\n",
        3,
    )
    assert (second.language, second.line) == ("console", 6)


def test_code_that_does_not_compile_is_named_with_its_line() -> None:
    [block] = blocks(Source("a.md", "x\n```python\na = 1\nb = = 2\n```\n"))
    with pytest.raises(SyntaxError) as caught:
        test_python_in_the_documents_compiles(block)
    assert (caught.value.filename, caught.value.lineno) == ("a.md", 4)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("usage: manage.py leaseq status [-h]\n\nexample:\n  manage.py leaseq status\n", True),
        ("usage: manage.py leaseq status [-h]\n\nShows the state.\n", False),
        ("usage: manage.py leaseq status [-h]\n\nexamples:\n  manage.py leaseq jobs\n", False),
    ],
    ids=["shown", "none", "of-another-verb"],
)
def test_a_verb_without_an_example_of_its_own_is_seen(told: str, *, expected: bool) -> None:
    assert shows_an_example(told, "status") is expected


def test_a_table_that_leaves_a_move_out_is_seen() -> None:
    table = "## Lease\n| A | active | released, expired |\n## Hold\n| A | held | settled |\n"
    assert moves(table, "Lease") == {("active", "released"), ("active", "expired")}
