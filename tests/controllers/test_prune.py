"""Payloads and results go when their retention is over; what happened stays (SPEC G1)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import F

from leaseq.controllers import prune, settle
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.models import Attempt, Job, JobEvent, LedgerEntry
from leaseq.services import attempts, retention
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import EndReason, JobState
from tests.controllers.conftest import INSTANT, SetClock, run_twice_at_once

LIMITS = PassLimits(batch=100, seconds=30)
RETENTION = timedelta(days=30)
Ahead = Callable[[timedelta], None]


def run() -> PassSummary:
    return prune.run_once(LIMITS)


@pytest.fixture
def job(admit: Callable[..., Job]) -> Job:
    """A job whose payload somebody may want gone."""
    return admit(args=["secret"], kwargs={"a": 1})


@pytest.fixture
def ended(begun: Claimed) -> Job:
    """A job that completed with a result and is not settled."""
    attempts.complete(begun.proof, result={"text": "private"})
    return Job.objects.get(pk=begun.job_id)


@pytest.fixture
def settled(ended: Job) -> Job:
    settle.run_once(LIMITS)
    ended.refresh_from_db()
    assert ended.settled_at is not None
    return ended


@pytest.mark.parametrize(
    ("offset", "is_due"),
    [(-INSTANT, False), (timedelta(0), True), (INSTANT, True)],
    ids=["just-before", "at", "after"],
)
def test_payload_and_results_go_from_the_end_of_the_retention_on(
    settled: Job, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    assert settled.ended_at is not None
    set_clock(settled.ended_at + RETENTION + offset)
    assert run().counts == ({"erased": 1} if is_due else {})
    job, attempt = Job.objects.get(pk=settled.pk), Attempt.objects.get(job=settled)
    if is_due:
        assert job.payload == {"args": [], "kwargs": {}}
        assert attempt.result is None
        assert job.erased_at == settled.ended_at + RETENTION + offset
    else:
        assert job.payload == {"args": ["secret"], "kwargs": {"a": 1}}
        assert attempt.result == {"text": "private"}
        assert job.erased_at is None


def test_erasing_leaves_state_digest_times_and_ledger_and_writes_one_event(
    settled: Job, ahead: Ahead
) -> None:
    ledger = list(LedgerEntry.objects.order_by("pk").values())
    events = list(JobEvent.objects.order_by("pk").values())
    ahead(RETENTION)
    assert [run().counts for _ in range(3)] == [{"erased": 1}, {}, {}]
    job = Job.objects.get(pk=settled.pk)
    assert list(LedgerEntry.objects.order_by("pk").values()) == ledger
    assert list(JobEvent.objects.order_by("pk").values())[:-1] == events
    last = job.events.order_by("version").last()
    assert last is not None
    assert (last.kind, last.actor, last.version) == ("payload_erased", prune.ACTOR, job.version)
    assert last.data == {"results": 1}
    unchanged = ("state", "reason", "payload_digest", "submitted_at", "ended_at", "settled_at")
    for name in unchanged:
        assert getattr(job, name) == getattr(settled, name)


def test_a_job_whose_money_is_not_settled_keeps_its_payload(ended: Job, ahead: Ahead) -> None:
    ahead(RETENTION * 2)
    assert run().counts == {}
    assert not retention.erase(ended.pk, actor="user:test")
    ended.refresh_from_db()
    assert ended.erased_at is None
    assert ended.payload["args"] == ["secret"]


def test_a_running_job_keeps_its_payload_however_old(begun: Claimed, ahead: Ahead) -> None:
    ahead(RETENTION * 2)
    assert run().counts == {}
    assert not retention.erase(begun.job_id, actor="user:test")


def test_an_erased_job_cannot_be_made_to_run_again(begun: Claimed, ahead: Ahead) -> None:
    attempts.fail(begun.proof, cause=EndReason.TASK_ERROR, error="broken")
    settle.run_once(LIMITS)
    settled = Job.objects.get(pk=begun.job_id)
    ahead(RETENTION)
    assert run().counts == {"erased": 1}
    again: dict[str, Any] = {"state": JobState.ADMITTED, "version": F("version") + 1}
    again |= {"ended_at": None, "reason": None, "dead_letter": False}
    again |= {"waiting_since": settled.ended_at, "queue_deadline_at": settled.ended_at}
    sentence = "only_an_ended_job_is_erased_and_it_never_runs_again"
    with pytest.raises(IntegrityError, match=sentence), transaction.atomic():
        Job.objects.filter(pk=settled.pk).update(**again)
    assert Job.objects.get(pk=settled.pk).state == JobState.FAILED


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_two_passes_at_once_erase_once(settled: Job, ahead: Ahead) -> None:
    """Both read the same job; one locks it, and the other skips it or finds it erased."""
    ahead(RETENTION)
    summaries = run_twice_at_once(run)
    assert sum(one.counts.get("erased", 0) for one in summaries) == 1
    assert JobEvent.objects.filter(kind="payload_erased").count() == 1
