"""What an operator sees: each verb tells what is there, as a table and as JSON."""

import json
from collections.abc import Callable
from decimal import Decimal

import pytest

from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.models import Account, Job, PermitPool
from leaseq.services import attempts, cancellation, holds
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.worker import control
from tests.cli.conftest import Terminal

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool(account: Account) -> PermitPool:
    return PermitPool.objects.create(kind="account", key=account.name, limit=5)


def test_status_of_an_empty_installation_says_what_to_do(terminal: Terminal) -> None:
    assert terminal.run("status") == 0
    for told in ("No job waits", "celery -A", "leaseq pass schedule", "Create accounts"):
        assert told in terminal.shown


def test_status_counts_jobs_slots_permits_and_money(
    terminal: Terminal, pool: PermitPool, begun: Claimed, admit: Callable[..., Job]
) -> None:
    admit(cost_ceiling="0.5")
    assert terminal.run("status") == 0
    assert ["gpu", "1", "<", "1", "s", "0", "1", "1", "1"] in terminal.lines
    assert ["account:acme", "1", "5"] in terminal.lines
    assert ["acme", "EUR", "100.00", "1.50", "0.00", "98.50", "2"] in terminal.lines
    assert "gpu1@here" in terminal.shown


def test_status_as_json_has_the_same(terminal: Terminal, begun: Claimed) -> None:
    assert terminal.run("status", "--json") == 0
    told = json.loads(terminal.shown)
    assert told["queues"] == [
        {
            "queue": "gpu",
            "waiting": 0,
            "queued": 0,
            "executing": 1,
            "oldest_at": None,
            "slots": 2,
            "slots_free": 1,
        }
    ]
    assert Decimal(told["accounts"][0]["held"]) == 1
    assert told["workers"][0]["leases"] == 1
    assert told["attention"] == {"open_findings": 0, "outcomes_unknown": 0, "dead_letters": 0}


def test_status_points_at_what_needs_a_person(terminal: Terminal, begun: Claimed) -> None:
    Job.objects.update(dead_letter=False)
    attempts.fail(begun.proof, cause="max_run_time", error="too long")  # type: ignore[arg-type]
    terminal.run("status")
    assert "dead letters: 1 – manage.py leaseq jobs --dead-letter" in terminal.shown
    terminal.run("jobs", "--dead-letter", "--json")
    assert [one["dead_letter"] for one in json.loads(terminal.shown)] == [True]


@pytest.mark.parametrize(
    ("asked", "tasks"),
    [
        ([], ["tests.second", "tests.first"]),
        (["--limit", "1"], ["tests.second"]),
        (["--queue", "cpu"], ["tests.second"]),
        (["--state", "cancelled"], ["tests.first"]),
        (["--state", "open"], ["tests.second"]),
        (["--account", "nobody"], []),
    ],
    ids=["all", "limit", "queue", "state", "open", "account"],
)
def test_jobs_are_listed_latest_first_as_asked(
    terminal: Terminal, admit: Callable[..., Job], asked: list[str], tasks: list[str]
) -> None:
    first = admit(task="tests.first")
    admit(task="tests.second", queue="cpu")
    cancellation.ask(first.pk, actor="user:test", reason="not needed")
    assert terminal.run("jobs", *asked, "--json") == 0
    assert [one["task"] for one in json.loads(terminal.shown)] == tasks
    assert terminal.run("jobs", *asked) == 0
    shown = [line for line in terminal.lines if line and line[1:2] and line[1].startswith("tests.")]
    assert [line[1] for line in shown] == tasks


def test_an_id_from_a_list_finds_its_job(
    terminal: Terminal, begun: Claimed, pool: PermitPool
) -> None:
    terminal.run("jobs")
    [short] = [line[0] for line in terminal.lines if "tests.nothing" in line]
    assert terminal.run("job", short) == 0
    assert f"Job {begun.job_id}" in terminal.shown
    words = [line[1] for line in terminal.lines if line and line[0].startswith("0:0")]
    assert words == ["admitted", "reserved", "queued", "claimed", "accepted", "started"]
    assert "gpu1@here" in terminal.shown
    assert any(line[-6:-5] == ["active"] for line in terminal.lines)


def test_a_finished_job_shows_its_money(terminal: Terminal, begun: Claimed) -> None:
    attempts.complete(begun.proof, result="done")
    holds.settle(begun.job_id)
    assert terminal.run("job", str(begun.job_id)) == 0
    assert ["1.00", "released", "0.00", "0.00", "1.00", "never", "sent"] in terminal.lines


def test_a_job_as_json_has_the_whole_story(terminal: Terminal, begun: Claimed) -> None:
    assert terminal.run("job", str(begun.job_id), "--json") == 0
    told = json.loads(terminal.shown)
    assert told["job"]["state"] == "running"
    assert [one["version"] for one in told["events"]] == [1, 2, 3, 4, 5, 6]
    assert told["attempts"][0]["worker"] == "gpu1@here"
    assert told["leases"][0]["status"] == "active"
    assert told["spent"]["attempts"] == [1, 3]


@pytest.mark.parametrize("key", ["000000000000", "%", "no-such-job", "x"])
def test_a_job_that_is_not_there_is_status_1(terminal: Terminal, job: Job, key: str) -> None:
    assert terminal.run("job", key) == 1
    assert "No job's id is" in terminal.shown
    assert "leaseq jobs" in terminal.shown


def test_an_id_that_fits_several_jobs_lists_them_whole(
    terminal: Terminal, admit: Callable[..., Job]
) -> None:
    one, other = admit(), admit()
    shared = str(one.pk)[:4]
    assert terminal.run("job", shared) == 1
    assert str(one.pk) in terminal.shown
    assert str(other.pk) in terminal.shown


def test_leases_show_owner_and_time_left(
    terminal: Terminal, pool: PermitPool, queued_job: Job
) -> None:
    assert terminal.run("leases") == 0
    [line] = [line for line in terminal.lines if "permit" in line]
    assert line[2] == str(queued_job.pk)[-12:]
    assert line[3:6] == ["control", "plane", "29"]
    assert terminal.run("leases", "--worker", "gpu1@here") == 0
    assert "Nothing is held." in terminal.shown


def test_workers_that_are_over_are_shown_only_if_asked(
    terminal: Terminal, worker: Registered
) -> None:
    assert terminal.run("workers", "--json") == 0
    assert [one["name"] for one in json.loads(terminal.shown)] == ["gpu1@here"]
    assert json.loads(terminal.shown)[0]["slots"] == 2


def test_money_of_an_account_that_is_not_there_is_status_1(
    terminal: Terminal, account: Account
) -> None:
    assert terminal.run("money", "--account", "acme") == 0
    assert terminal.run("money", "--account", "nobody") == 1


def test_a_pass_is_run_by_hand_with_its_limits(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PassLimits] = []

    class Settle:
        @staticmethod
        def run_once(limits: PassLimits) -> PassSummary:
            asked.append(limits)
            return PassSummary(name="settle", counts={"settled": 2}, complete=False)

    monkeypatch.setitem(control.PASSES, "settle", Settle)
    assert terminal.run("pass", "settle", "--seconds", "3", "--batch", "7") == 0
    assert asked == [PassLimits(batch=7, seconds=3.0)]
    assert terminal.shown.strip() == "settle: settled 2; left some for later"


def test_a_pass_with_errors_is_status_1(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Settle:
        @staticmethod
        def run_once(limits: PassLimits) -> PassSummary:
            return PassSummary(name="settle", counts={"errors": limits.batch})

    monkeypatch.setitem(control.PASSES, "settle", Settle)
    assert terminal.run("pass", "settle", "--json") == 1
    assert json.loads(terminal.shown)["counts"] == {"errors": 100}


def test_a_real_pass_is_seen_in_status(terminal: Terminal, job: Job) -> None:
    assert terminal.run("pass", "settle") == 0
    assert terminal.shown.strip() == "settle: nothing was due"
    terminal.run("status")
    assert any(line[:1] == ["settle"] for line in terminal.lines)
