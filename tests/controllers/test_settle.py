"""Holds of ended jobs are closed by verdict, once, those due longest first (SPEC F4, L7)."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from leaseq.controllers import settle
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.errors import LeaseqBug
from leaseq.models import Account, Attempt, Hold, Job, LedgerEntry
from leaseq.services import attempts, holds, outbox, scheduling
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import EntryKind, HoldState
from tests.conftest import register_worker
from tests.controllers.conftest import INSTANT, SetClock, run_twice_at_once


def run(batch: int = 100) -> PassSummary:
    return settle.run_once(PassLimits(batch=batch, seconds=30))


@pytest.fixture
def completed(admit: Callable[..., Job]) -> list[UUID]:
    """Five jobs that completed one after the other without usage."""
    worker = register_worker("big@here", slots=5)
    for _ in range(5):
        admit()
    scheduling.reserve("gpu", limit=5)
    outbox.take_due(limit=5)
    found = Attempt.objects.order_by("job__submitted_at").values_list("pk", flat=True)
    done = []
    for attempt_id, slot_id in zip(found, worker.slot_ids, strict=True):
        claimed = attempts.claim(attempt_id, worker_id=worker.worker_id, slot_id=slot_id)
        attempts.begin(claimed.proof)
        attempts.complete(claimed.proof, result=None)
        done.append(claimed.job_id)
    return done


@pytest.mark.parametrize(
    ("offset", "is_due"),
    [(-INSTANT, False), (timedelta(0), True), (INSTANT, True)],
    ids=["just-before", "at", "after"],
)
def test_a_job_is_settled_from_the_instant_it_is_due_on(
    begun: Claimed, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    attempts.complete(begun.proof, result=None)
    settle_at = Job.objects.get(pk=begun.job_id).settle_at
    assert settle_at is not None
    Job.objects.filter(pk=begun.job_id).update(settle_at=settle_at + timedelta(seconds=9))
    set_clock(settle_at + timedelta(seconds=9) + offset)
    summary = run()
    hold = Hold.objects.get(job_id=begun.job_id)
    assert sum(summary.counts.values()) == int(is_due)
    assert (hold.state == HoldState.HELD) is not is_due


@pytest.mark.parametrize("batch", [1, 2, 5, 6], ids=lambda batch: f"batch-of-{batch}")
def test_full_batches_are_followed_to_the_end_and_a_second_pass_finds_nothing(
    completed: list[UUID], account: Account, batch: int
) -> None:
    summary = run(batch)
    assert sum(summary.counts.values()) == 5
    assert summary.complete
    assert not Hold.objects.filter(state=HoldState.HELD).exists()
    account.refresh_from_db()
    assert account.held == Decimal(0)
    entries = LedgerEntry.objects.count()
    assert run(batch).counts == {}
    assert LedgerEntry.objects.count() == entries


def test_the_job_that_is_due_longest_is_settled_first(
    completed: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, job_id in enumerate(completed):
        job = Job.objects.get(pk=job_id)
        assert job.settle_at is not None
        Job.objects.filter(pk=job_id).update(settle_at=job.settle_at - timedelta(hours=index))
    order: list[UUID] = []

    def note(job_id: UUID) -> str:
        order.append(job_id)
        return "seen"

    monkeypatch.setattr(holds, "settle", note)
    run(batch=2)
    assert order == completed[::-1]


def test_a_hold_that_cannot_be_settled_is_named_and_keeps_no_other_waiting(
    completed: list[UUID], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = holds.settle

    def breaks(job_id: UUID) -> str:
        if job_id in completed[:3]:
            raise LeaseqBug("an ended job has no hold", job_id=job_id)
        return real(job_id)

    monkeypatch.setattr(holds, "settle", breaks)
    summary = run(batch=2)
    assert summary.counts["errors"] == 3
    assert sum(summary.counts.values()) == 5
    assert all(str(one) in caplog.text for one in completed[:3])
    assert Hold.objects.filter(state=HoldState.HELD).count() == 3


def test_a_pass_out_of_time_leaves_the_rest_to_the_next(completed: list[UUID]) -> None:
    first = settle.run_once(PassLimits(batch=100, seconds=0))
    assert sum(first.counts.values()) == 1
    assert not first.complete
    second = run()
    assert sum(second.counts.values()) == 4
    assert second.complete


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_two_passes_at_once_close_each_hold_once(completed: list[UUID], account: Account) -> None:
    """Both read the same five jobs; row by row, one locks the job and the other skips it."""
    summaries = run_twice_at_once(run)
    assert all("errors" not in one.counts for one in summaries)
    assert not Hold.objects.filter(state=HoldState.HELD).exists()
    moved = LedgerEntry.objects.exclude(kind=EntryKind.HOLD)
    assert moved.count() == 5
    account.refresh_from_db()
    assert account.held == Decimal(0)
