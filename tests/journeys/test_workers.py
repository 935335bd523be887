"""Leased tasks in real Celery workers: every pool, every crash (SPEC D, PROMISES F1-F4)."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from leaseq.errors import TransitionRefused, Unavailable
from leaseq.models import Attempt, Lease, ServingPolicy, Slot, WorkerNode
from leaseq.rules.ownership import Fence, OwnerProof
from leaseq.services import attempts, cancellation
from leaseq.vocabulary import AttemptState, EndReason, JobState, LeaseStatus, WorkerState
from tests.journeys.conftest import TTL, Plant, wait_for

pytestmark = pytest.mark.journey
SWEEP_S = 1.0


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_job_runs_in_every_pool(plant: Plant, pool: str) -> None:
    plant.control()
    plant.gpu(slots=1, pool=pool)
    good, bad = plant.admit("journey.add", 2, 3), plant.admit("journey.fail", "no")
    good, bad = plant.ended(good), plant.ended(bad)
    assert (good.state, good.attempts.get().result) == (JobState.COMPLETED, 5)
    assert (bad.state, bad.reason) == (JobState.FAILED, EndReason.TASK_ERROR)
    assert "ValueError: no" in bad.attempts.get().error
    states = [event.to_state for event in good.events.order_by("version")]
    assert states[:7] == [
        "admitted", "reserved", "queued", "dispatching", "provider_accepted", "running",
        "completed",
    ]  # fmt: skip
    assert not Lease.objects.filter(status=LeaseStatus.ACTIVE).exists()


def test_a_killed_worker_gives_its_slot_back_and_its_late_result_is_refused(plant: Plant) -> None:
    plant.control()
    doomed = plant.gpu("gpu1")
    job = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    first = Attempt.objects.get(job=job, number=1)
    lease = Lease.objects.get(attempt=first, slot__isnull=False)
    plant.gpu("gpu2")
    doomed.kill()
    killed_at = time.monotonic()
    plant.started(2, within_s=TTL.total_seconds() + SWEEP_S + 2)
    print(f"a new attempt ran {time.monotonic() - killed_at:.2f} s after the kill")
    proof = OwnerProof(
        lease_id=lease.pk,
        attempt_id=first.pk,
        fence=Fence(epoch=lease.fence_epoch, counter=lease.fence),
    )
    before = list(Attempt.objects.filter(job=job).order_by("number").values())
    for late in (
        lambda: attempts.complete(proof, result="late"),
        lambda: attempts.fail(proof, cause=EndReason.TASK_ERROR, error="late"),
        lambda: attempts.progress(proof, report={"late": True}),
    ):
        with pytest.raises(TransitionRefused):
            late()
    assert list(Attempt.objects.filter(job=job).order_by("number").values()) == before
    plant.let_go()
    job = plant.ended(job)
    assert (job.state, job.attempts.get(number=2).result) == (JobState.COMPLETED, "attempt 2")
    first.refresh_from_db()
    assert (first.state, first.result) == (AttemptState.LOST, None)


def test_a_killed_pool_process_loses_only_its_attempt(plant: Plant) -> None:
    plant.control()
    worker = plant.gpu()
    job = plant.admit("journey.hold", str(plant.folder))
    os.kill(plant.started(1), signal.SIGKILL)
    plant.started(2, within_s=TTL.total_seconds() + SWEEP_S + 2)
    plant.let_go()
    assert plant.ended(job).state == JobState.COMPLETED
    assert worker.is_running
    assert job.attempts.get(number=1).reason == EndReason.WORKER_LOST


def test_a_pool_process_does_not_outlive_its_killed_parent(plant: Plant) -> None:
    plant.control()
    parent = plant.gpu("gpu1")
    job = plant.admit("journey.deaf", str(plant.folder))
    child = plant.started(1)
    os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}").exists(), within_s=5, what="the child's end")
    plant.gpu("gpu2")
    plant.started(2)
    plant.let_go()
    assert plant.ended(job).state == JobState.COMPLETED


def test_a_poison_job_ends_after_its_attempts(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.ended(plant.admit("journey.suicide", str(plant.folder)), within_s=60)
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_ATTEMPTS,
        True,
    )
    assert sorted(one.name for one in plant.folder.glob("started-*")) == [
        "started-1",
        "started-2",
        "started-3",
    ]
    assert plant.ended(plant.admit("journey.add", 1, 1)).state == JobState.COMPLETED


def test_a_task_that_holds_the_gil_for_three_ttls_keeps_its_lease(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    seconds = int(TTL.total_seconds() * 3)
    job = plant.ended(plant.admit("journey.hog", str(plant.folder), seconds))
    assert (job.state, job.attempts.get().result) == (JobState.COMPLETED, "attempt 1")
    assert job.leases.get(slot__isnull=False).renewal_count >= 3


def test_a_deaf_task_is_killed_when_its_lease_is_lost(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.admit("journey.deaf", str(plant.folder))
    child = plant.started(1)
    lease = Lease.objects.get(job=job, slot__isnull=False)
    assert lease.worker_id is not None
    assert attempts.lose_of_worker(
        lease.attempt_id, worker_id=lease.worker_id, cause=EndReason.REVOKED_BY_OPERATOR
    )
    bound = TTL.total_seconds() + 1 + 2
    wait_for(lambda: not Path(f"/proc/{child}").exists(), within_s=bound, what="the hard stop")
    plant.started(2)
    plant.let_go()
    assert plant.ended(job).attempts.get(number=2).result == "attempt 2"


@pytest.mark.parametrize("task", ["journey.hold", "journey.deaf"])
def test_a_run_past_its_limit_ends_the_job_and_is_not_tried_again(plant: Plant, task: str) -> None:
    ServingPolicy.objects.update(run_time_max=timedelta(seconds=2))
    plant.control()
    plant.gpu()
    job = plant.ended(plant.admit(task, str(plant.folder)))
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_RUN_TIME,
        True,
    )
    assert job.attempts.count() == 1
    assert plant.ended(plant.admit("journey.add", 1, 1)).state == JobState.COMPLETED


def test_a_retry_is_a_new_attempt(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.ended(plant.admit("journey.again"))
    assert job.attempts.get(number=2).result == 2
    assert job.attempts.get(number=1).reason == EndReason.TASK_RETRY


def test_a_warm_shutdown_finishes_its_task_and_gives_the_slot_back(plant: Plant) -> None:
    plant.control()
    worker = plant.gpu()
    job = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    os.kill(worker.pid, signal.SIGTERM)
    draining = WorkerNode.objects.filter(pid=worker.pid, state=WorkerState.DRAINING)
    wait_for(draining.exists, what="the worker to drain")
    plant.let_go()
    job = plant.ended(job)
    assert (job.state, job.attempts.count()) == (JobState.COMPLETED, 1)
    wait_for(lambda: not worker.is_running, what="the worker's end")
    assert WorkerNode.objects.get(pid=worker.pid).state == WorkerState.STOPPED
    assert not Slot.objects.filter(worker__isnull=False).exists()


def test_a_running_job_is_cancelled_by_its_owner(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    cancellation.ask(job.pk, actor="user:test", reason="no longer needed")
    job = plant.ended(job, within_s=TTL.total_seconds() + 3)
    assert (job.state, job.attempts.get().state) == (JobState.CANCELLED, AttemptState.CANCELLED)
    assert plant.ended(plant.admit("journey.add", 1, 1)).state == JobState.COMPLETED


def test_slots_are_not_offered_twice(plant: Plant) -> None:
    plant.gpu("gpu1")
    with pytest.raises(Unavailable, match="offers the same slots"):
        plant.gpu("gpu1")
    assert WorkerNode.objects.count() == 1
