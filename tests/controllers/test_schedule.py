"""Waiting jobs are queued while live slots can soon take them, and told at once (SPEC D5)."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from leaseq.controllers import schedule
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.errors import LeaseqBug
from leaseq.models import ControlPass, Job, JobEvent, Lease, OutboxMessage, PermitPool
from leaseq.services import scheduling
from leaseq.services.scheduling import Reserved
from leaseq.services.workers import Registered
from leaseq.vocabulary import JobState, LeaseStatus, PoolKind
from tests.conftest import RecordingPorts, register_worker
from tests.controllers.conftest import run_twice_at_once

AdmitOne = Callable[..., Job]


def run(batch: int = 100) -> PassSummary:
    return schedule.run_once(PassLimits(batch=batch, seconds=30))


@pytest.mark.parametrize("batch", [1, 3, 4, 100], ids=lambda batch: f"batch-of-{batch}")
def test_a_pass_queues_what_fits_and_sends_its_messages_at_once(
    admit: AdmitOne, worker: Registered, recording_ports: RecordingPorts, batch: int
) -> None:
    jobs = [admit() for _ in range(6)]
    summary = run(batch)
    # Two free slots, and one more job in sight for each.
    assert summary.counts == {"queued": 4, "sent": 4}
    assert [Job.objects.get(pk=one.pk).state for one in jobs] == [JobState.QUEUED] * 4 + [
        JobState.ADMITTED
    ] * 2
    assert len(recording_ports.doorbells) == 4
    assert run(batch).counts == {}


@pytest.mark.parametrize(
    ("waiting", "queued"),
    [(3, 3), (4, 4), (5, 4)],
    ids=["just-below-the-room", "the-room", "just-above-the-room"],
)
def test_no_more_is_queued_than_there_is_room_for(
    admit: AdmitOne, worker: Registered, waiting: int, queued: int
) -> None:
    for _ in range(waiting):
        admit()
    assert run().counts["queued"] == queued
    assert OutboxMessage.objects.count() == queued


def test_a_queue_that_no_worker_serves_waits(admit: AdmitOne, worker: Registered) -> None:
    job = admit(queue="elsewhere")
    assert run().counts == {}
    job.refresh_from_db()
    assert job.state == JobState.ADMITTED


def test_a_job_without_a_permit_keeps_its_place_and_is_counted_by_its_reason(
    admit: AdmitOne, worker: Registered
) -> None:
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=1)
    for _ in range(3):
        admit()
    assert run().counts == {"no_permit_free": 2, "queued": 1, "sent": 1}
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 1


def test_a_queue_that_cannot_be_scheduled_stops_no_other(
    admit: AdmitOne,
    worker: Registered,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    register_worker("cpu1@here", slots=1, queue="cpu", pid=4712)
    admit(queue="cpu")
    admit(queue="gpu")
    real = scheduling.reserve

    def breaks(queue: str, *, limit: int) -> Reserved:
        if queue == "cpu":
            raise LeaseqBug("a locked attempt changed under its lock")
        return real(queue, limit=limit)

    monkeypatch.setattr(scheduling, "reserve", breaks)
    assert run().counts == {"errors": 1, "queued": 1, "sent": 1}
    assert "could not handle cpu" in caplog.text


def test_a_pass_that_ended_before_it_published_is_taken_up_by_the_next(
    admit: AdmitOne,
    worker: Registered,
    monkeypatch: pytest.MonkeyPatch,
    recording_ports: RecordingPorts,
) -> None:
    admit()
    scheduling.reserve("gpu", limit=1)
    assert recording_ports.doorbells == []
    assert run().counts == {"sent": 1}
    assert len(recording_ports.doorbells) == 1


def test_out_of_time_a_pass_queues_one_batch_and_says_that_it_is_not_complete(
    admit: AdmitOne, worker: Registered
) -> None:
    for _ in range(4):
        admit()
    summary = schedule.run_once(PassLimits(batch=1, seconds=0))
    assert summary.counts["queued"] == 1
    assert not summary.complete
    assert ControlPass.objects.get(name="schedule").summary["complete"] is False


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_two_passes_at_once_queue_no_job_twice_and_send_each_message_once(
    admit: AdmitOne, recording_ports: RecordingPorts
) -> None:
    """Both see the same room and line; the job rows and the outbox rows are locked and skipped."""
    register_worker("big@here", slots=6)
    for _ in range(12):
        admit()
    summaries = run_twice_at_once(run)
    assert all("errors" not in one.counts for one in summaries)
    assert JobEvent.objects.filter(kind="queued").count() == 12
    attempts = [one.attempt_id for one in recording_ports.doorbells]
    assert len(attempts) == len(set(attempts)) == 12
    assert sum(one.counts.get("queued", 0) for one in summaries) == 12


def test_a_job_that_waits_out_its_backoff_is_not_queued(
    admit: AdmitOne, worker: Registered
) -> None:
    job = admit()
    Job.objects.filter(pk=job.pk).update(not_before=job.not_before + timedelta(hours=1))
    assert run().counts == {}
