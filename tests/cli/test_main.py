"""Help, exit statuses, and errors in one line."""

import json
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection

from leaseq.cli import status
from leaseq.cli.main import VERBS, main
from leaseq.errors import Misconfigured
from leaseq.models import Account, Job, JobEvent
from leaseq.services.attempts import Claimed
from tests.cli.conftest import Terminal


@pytest.fixture
def whole(begun: Claimed) -> Iterator[None]:
    """Committed rows that the services made; the triggers are on again afterwards."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leaseq_jobevent ENABLE TRIGGER USER")


def unname_an_actor() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE leaseq_jobevent DISABLE TRIGGER USER")
        cursor.execute("UPDATE leaseq_jobevent SET actor = ' ' WHERE version < 4")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("whole")
def test_verify_is_green_with_status_0(terminal: Terminal) -> None:
    assert terminal.run("verify") == 0
    assert "GREEN: all" in terminal.shown
    assert max(map(len, terminal.shown.splitlines())) <= 80


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("whole")
def test_verify_is_red_with_status_1_and_names_the_rows(terminal: Terminal) -> None:
    unname_an_actor()
    assert terminal.run("verify", "--limit", "2") == 1
    assert "A1 is broken: Every event names its actor." in terminal.shown
    assert "and 1 more; see them with --limit" in terminal.shown
    assert "RED: 1 of" in terminal.shown
    assert terminal.shown.count("names no actor") == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("whole")
def test_verify_as_json_has_a_stable_shape(terminal: Terminal) -> None:
    unname_an_actor()
    assert terminal.run("verify", "--json") == 1
    told = json.loads(terminal.shown)
    assert set(told) == {"at", "green", "invariants"}
    assert told["green"] is False
    [broken] = [one for one in told["invariants"] if one["violations"]]
    assert set(broken) == {"id", "sentence", "rows", "violations", "shown"}
    assert (broken["id"], broken["rows"], broken["violations"]) == (
        "A1",
        JobEvent.objects.count(),
        3,
    )
    assert set(broken["shown"][0]) == {"what", "key", "detail"}
    assert broken["shown"][0]["key"] == str(Job.objects.get().pk)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OperationalError("connection failed: no route\n\tIs the server running?"),
            "Unavailable: the database at ",
        ),
        (
            ProgrammingError('relation "leaseq_job" does not exist\nLINE 1: …'),
            "Misconfigured: the database has not the tables",
        ),
        (Misconfigured("LEASEQ has no key 'X'"), "Misconfigured: LEASEQ has no key 'X'"),
    ],
    ids=["unreachable", "not-migrated", "settings"],
)
def test_what_can_be_expected_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    told: str,
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(status, "run", fail)
    assert main(["status"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(told)
    assert len(shown.err.splitlines()) == 1
    assert ("migrate" in shown.err) == isinstance(error, ProgrammingError)
    assert ("DATABASES['default']" in shown.err) == isinstance(error, OperationalError)


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise KeyError("bug")

    monkeypatch.setattr(status, "run", fail)
    with pytest.raises(KeyError):
        main(["status"])


@pytest.mark.parametrize("verb", [one.NAME for one in VERBS])
def test_every_verb_has_help_with_an_example_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"manage.py leaseq {verb}" in capsys.readouterr().out.partition("example")[2]


def test_the_help_lists_every_verb_and_says_what_the_statuses_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"\n    {one.NAME} " in told for one in VERBS)
    for status_number in ("0", "1", "2"):
        assert f"\n  {status_number}  " in told.partition("exit status:")[2]


@pytest.mark.parametrize(
    "argv", [[], ["frob"], ["jobs", "--limit", "0"], ["jobs", "--state", "gone"], ["job"]]
)
def test_wrong_arguments_are_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: manage.py leaseq" in capsys.readouterr().err


@pytest.mark.django_db
def test_the_command_can_be_called_from_code(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("leaseq", "money", "--account", account.name, "--json")
    assert json.loads(capsys.readouterr().out)[0]["account"] == account.name
    with pytest.raises(CommandError) as refused:
        call_command("leaseq", "money", "--account", "nobody")
    assert refused.value.returncode == 1


@pytest.mark.django_db
def test_options_of_django_are_let_pass(terminal: Terminal) -> None:
    assert terminal.run("jobs", "--settings=project.settings", "--json") == 0
