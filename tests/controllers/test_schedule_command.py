"""manage.py leaseq schedule, as its user sees it (SPEC G1, H4)."""

import argparse

import pytest
from django.apps import apps
from django_celery_beat.models import PeriodicTask

from leaseq.cli import schedule

pytestmark = pytest.mark.django_db


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    schedule.add_arguments(parser)
    return schedule.run(parser.parse_args(arguments))


def test_it_installs_what_is_missing_and_says_so_row_by_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call() == 0
    assert capsys.readouterr().out.splitlines() == [
        "leaseq: schedule   created",
        "leaseq: renew      created",
        "leaseq: expire     created",
        "leaseq: settle     created",
        "leaseq: prune      created",
    ]
    assert call() == 0
    assert capsys.readouterr().out.count("kept") == 5


def test_a_check_changes_nothing_and_fails_where_a_tick_would_not_come(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("--check") == 1
    assert not PeriodicTask.objects.exists()
    assert "Not sent: leaseq: schedule, leaseq: renew" in capsys.readouterr().out

    call()
    assert call("--check") == 0
    PeriodicTask.objects.filter(name="leaseq: expire").update(enabled=False)
    capsys.readouterr()
    assert call("--check") == 1
    told = capsys.readouterr().out
    assert "leaseq: expire     disabled   (disabled)" in told
    assert "Not sent: leaseq: expire. To mend it" in told


def test_a_reset_undoes_edits(capsys: pytest.CaptureFixture[str]) -> None:
    call()
    PeriodicTask.objects.filter(name="leaseq: expire").update(enabled=False, queue="gpu")
    assert call() == 1
    assert call("--reset") == 0
    assert "leaseq: expire     reset" in capsys.readouterr().out
    row = PeriodicTask.objects.get(name="leaseq: expire")
    assert (row.enabled, row.queue) == (True, "leaseq-control")


def test_check_and_reset_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("--check", "--reset")
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--reset",)], ids=str)
def test_without_the_package_it_shows_the_schedule_as_data(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django_celery_beat")
    assert call(*arguments) == 1
    told = capsys.readouterr().out
    assert "leaseq[beat]" in told
    assert "app.conf.beat_schedule = beat_schedule()" in told
    assert '"leaseq: expire"' in told
