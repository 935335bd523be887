"""The sweep: what is past its time goes back, once, whoever else is at it (SPEC B9, D7, L5)."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from leaseq.controllers import expire
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.controllers.expire import Process, Witness
from leaseq.db import clock
from leaseq.errors import LeaseqBug
from leaseq.models import (
    Attempt,
    ControlPass,
    Finding,
    Hold,
    Job,
    JobEvent,
    Lease,
    ServingPolicy,
    WorkerNode,
)
from leaseq.queries import leases as lease_queries
from leaseq.rules.outcome import LossVerdict
from leaseq.services import attempts, holds, leases, outbox, scheduling, workers
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
    WorkerState,
)
from tests.conftest import RecordingPorts, register_worker
from tests.controllers.conftest import INSTANT, SetClock, run_twice_at_once

AdmitOne = Callable[..., Job]
Ahead = Callable[[timedelta], None]
LIMITS = PassLimits(batch=100, seconds=30)
EDGES = pytest.mark.parametrize(
    ("offset", "is_due"),
    [(-INSTANT, False), (timedelta(0), True), (INSTANT, True)],
    ids=["just-before", "at", "after"],
)


def knows_nothing(_process: Process) -> bool | None:
    return None


def sweep(limits: PassLimits = LIMITS) -> PassSummary:
    """Sweep from a machine that knows nothing of the workers of these tests."""
    witness = Witness(node="elsewhere", is_dead=knows_nothing)
    return expire.run_once(limits, witness=witness)


def sweep_here(is_dead: Callable[[Process], bool | None]) -> PassSummary:
    """Sweep from the machine of these tests' workers."""
    return expire.run_once(LIMITS, witness=Witness(node="here", is_dead=is_dead))


@pytest.fixture
def many_claimed(admit: AdmitOne) -> list[Claimed]:
    """Seven attempts, each of its own job, on seven slots of one worker."""
    worker = register_worker("big@here", slots=7)
    for _ in range(7):
        admit()
    scheduling.reserve("gpu", limit=7)
    outbox.take_due(limit=7)
    found = Attempt.objects.order_by("job__submitted_at").values_list("pk", flat=True)
    return [
        attempts.claim(attempt_id, worker_id=worker.worker_id, slot_id=slot_id)
        for attempt_id, slot_id in zip(found, worker.slot_ids, strict=True)
    ]


@EDGES
def test_a_lease_is_swept_from_the_instant_of_its_expiry_on(
    claimed: Claimed, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    lease = Lease.objects.get(pk=claimed.proof.lease_id)
    set_clock(lease.expires_at + offset)
    summary = sweep()
    job = Job.objects.get(pk=claimed.job_id)
    lease.refresh_from_db()
    assert summary.counts == ({"readmitted": 1} if is_due else {})
    assert summary.complete
    assert lease.status == (LeaseStatus.EXPIRED if is_due else LeaseStatus.ACTIVE)
    assert job.state == (JobState.ADMITTED if is_due else JobState.DISPATCHING)
    assert job.attempts.get(number=1).state == (AttemptState.LOST if is_due else AttemptState.OPEN)


def test_ten_sweeps_over_one_expired_lease_leave_one_expiry_and_one_next_attempt(
    claimed: Claimed, ahead: Ahead
) -> None:
    ahead(claimed.ttl + INSTANT)
    counts = [sweep().counts for _ in range(10)]
    assert counts == [{"readmitted": 1}] + [{}] * 9
    job = Job.objects.get(pk=claimed.job_id)
    assert job.attempts.count() == 2
    assert job.events.filter(kind="readmitted").count() == 1


@pytest.mark.parametrize("batch", [1, 3, 7], ids=lambda batch: f"batch-of-{batch}")
def test_full_pages_are_followed_to_the_last_lease(
    many_claimed: list[Claimed], ahead: Ahead, batch: int
) -> None:
    ahead(many_claimed[0].ttl + INSTANT)
    summary = sweep(PassLimits(batch=batch, seconds=30))
    assert summary.counts == {"readmitted": 7}
    assert summary.complete
    assert not Lease.objects.filter(status=LeaseStatus.ACTIVE).exists()


def test_pages_full_of_leases_that_need_nothing_do_not_hide_the_one_behind_them(
    many_claimed: list[Claimed], ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(many_claimed[0].ttl + INSTANT)
    last = Lease.objects.filter(status=LeaseStatus.ACTIVE).order_by("-pk").first()
    assert last is not None
    real = leases.expire

    def needs_nothing(job_id: UUID, *, actor: str) -> LossVerdict | None:
        return real(job_id, actor=actor) if job_id == last.job_id else None

    monkeypatch.setattr(leases, "expire", needs_nothing)
    summary = sweep(PassLimits(batch=2, seconds=30))
    assert summary.counts == {"nothing_due": 6, "readmitted": 1}
    last.refresh_from_db()
    assert last.status == LeaseStatus.EXPIRED


def test_a_lease_that_cannot_be_swept_is_named_and_the_others_are_swept(
    many_claimed: list[Claimed],
    ahead: Ahead,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ahead(many_claimed[0].ttl + INSTANT)
    broken = many_claimed[3].job_id
    real = leases.expire

    def breaks(job_id: UUID, *, actor: str) -> LossVerdict | None:
        if job_id == broken:
            raise LeaseqBug("a locked job changed under its lock", job_id=job_id)
        return real(job_id, actor=actor)

    monkeypatch.setattr(leases, "expire", breaks)
    assert sweep().counts == {"errors": 1, "readmitted": 6}
    assert str(broken) in caplog.text
    assert Job.objects.get(pk=broken).state == JobState.DISPATCHING


def test_a_sweep_that_ended_midway_is_taken_up_by_the_next(
    many_claimed: list[Claimed], ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(many_claimed[0].ttl + INSTANT)
    real = leases.expire
    done: list[UUID] = []

    def is_killed_at_the_third(job_id: UUID, *, actor: str) -> LossVerdict | None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job_id)
        return real(job_id, actor=actor)

    with monkeypatch.context() as killed:
        killed.setattr(leases, "expire", is_killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            sweep()
    assert not ControlPass.objects.filter(name="expire").exists()
    assert sweep().counts == {"readmitted": 5}
    assert JobEvent.objects.filter(kind="readmitted").count() == 7


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_two_sweeps_at_once_end_each_attempt_once(
    many_claimed: list[Claimed], ahead: Ahead
) -> None:
    """Both read the same seven leases; row by row, one locks the job and the other skips it."""
    ahead(many_claimed[0].ttl + INSTANT)
    summaries = run_twice_at_once(sweep)
    assert sum(one.counts.get("readmitted", 0) for one in summaries) == 7
    assert all("errors" not in one.counts for one in summaries)
    assert Attempt.objects.filter(state=AttemptState.LOST).count() == 7
    assert JobEvent.objects.filter(kind="readmitted").count() == 7
    assert Attempt.objects.filter(state=AttemptState.OPEN).count() == 7


@pytest.mark.django_db(transaction=True)
def test_a_sweep_that_frees_something_rings_for_a_schedule_pass(
    claimed: Claimed, ahead: Ahead, recording_ports: RecordingPorts
) -> None:
    recording_ports.rings.clear()
    sweep()
    assert recording_ports.rings == []
    ahead(claimed.ttl + INSTANT)
    sweep()
    assert recording_ports.rings == ["schedule"]


def test_what_a_provably_dead_worker_held_is_lost_at_once(
    begun: Claimed, worker: Registered, ahead: Ahead
) -> None:
    asked: list[int] = []

    def is_dead(process: Process) -> bool | None:
        asked.append(process.pid)
        return True

    ahead(timedelta(seconds=3))
    summary = sweep_here(is_dead)
    assert asked == [4711]
    assert summary.counts == {"readmitted": 1, "worker_dead": 1}
    attempt = Attempt.objects.get(pk=begun.proof.attempt_id)
    assert attempt.state == AttemptState.LOST
    assert attempt.reason == EndReason.WORKER_LOST
    assert WorkerNode.objects.get(pk=worker.worker_id).state == WorkerState.DEAD
    assert not Lease.objects.filter(status=LeaseStatus.ACTIVE).exists()


@pytest.mark.parametrize("word", [False, None], ids=["it-lives", "nobody-can-know"])
def test_a_worker_that_is_not_provably_dead_keeps_what_it_holds(
    begun: Claimed, worker: Registered, ahead: Ahead, word: bool | None
) -> None:
    ahead(timedelta(seconds=25))
    assert sweep_here(lambda _process: word).counts == {"death_not_proved": 1}
    assert WorkerNode.objects.get(pk=worker.worker_id).state == WorkerState.LIVE
    assert Lease.objects.get(pk=begun.proof.lease_id).status == LeaseStatus.ACTIVE
    assert Job.objects.get(pk=begun.job_id).state == JobState.RUNNING


@pytest.mark.parametrize(
    ("offset", "is_asked"),
    [(-INSTANT, False), (timedelta(0), True), (INSTANT, True)],
    ids=["just-before-two-seconds", "at-two-seconds", "after-two-seconds"],
)
def test_only_a_worker_that_was_silent_for_two_seconds_is_looked_at(
    worker: Registered, set_clock: SetClock, offset: timedelta, is_asked: bool
) -> None:
    seen_at = WorkerNode.objects.get(pk=worker.worker_id).seen_at
    set_clock(seen_at + timedelta(seconds=2) + offset)
    assert sweep_here(lambda _process: True).counts == ({"worker_dead": 1} if is_asked else {})


def test_a_witness_is_not_asked_about_another_machine(worker: Registered, ahead: Ahead) -> None:
    ahead(timedelta(days=1))
    elsewhere = Witness(node="there", is_dead=lambda _process: True)
    assert expire.run_once(LIMITS, witness=elsewhere).counts == {}
    assert WorkerNode.objects.get(pk=worker.worker_id).state == WorkerState.LIVE


def test_what_was_left_of_a_worker_that_another_pass_declared_dead_is_taken(
    begun: Claimed, worker: Registered
) -> None:
    workers.declare_dead(worker.worker_id)
    assert sweep().counts == {"readmitted": 1}
    attempt = Attempt.objects.get(pk=begun.proof.attempt_id)
    assert attempt.reason == EndReason.WORKER_LOST


def become_unknown(begun: Claimed, set_clock: SetClock) -> Attempt:
    """Let a possibly sent attempt lose its lease while its worker is not known to be over."""
    Attempt.objects.filter(pk=begun.proof.attempt_id).update(possibly_sent=True)
    set_clock(Lease.objects.get(pk=begun.proof.lease_id).expires_at)
    assert sweep().counts == {"outcome_unknown": 1}
    attempt = Attempt.objects.get(pk=begun.proof.attempt_id)
    assert attempt.state == AttemptState.OUTCOME_UNKNOWN
    return attempt


@EDGES
def test_an_unknown_outcome_gets_its_verdict_at_the_end_of_monitoring(
    begun: Claimed, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    attempt = become_unknown(begun, set_clock)
    assert attempt.unknown_since is not None
    job = Job.objects.get(pk=begun.job_id)
    set_clock(attempt.unknown_since + job.policy.uncertain_max + offset)
    summary = sweep()
    job.refresh_from_db()
    assert summary.counts == ({"job_failed": 1} if is_due else {})
    assert job.state == (JobState.FAILED if is_due else JobState.RUNNING)
    assert job.attempts.count() == 1


def test_an_unknown_outcome_whose_holder_is_dead_waits_on_where_the_provider_may_go_on(
    begun: Claimed, worker: Registered, set_clock: SetClock
) -> None:
    become_unknown(begun, set_clock)
    workers.declare_dead(worker.worker_id)
    assert sweep().counts == {"nothing_due": 1}
    assert Job.objects.get(pk=begun.job_id).state == JobState.RUNNING


@EDGES
def test_a_job_expires_from_the_instant_of_its_queue_deadline_on(
    job: Job, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    assert job.queue_deadline_at is not None
    set_clock(job.queue_deadline_at + offset)
    summary = sweep()
    job.refresh_from_db()
    assert summary.counts == ({"wait_ended": 1} if is_due else {})
    assert job.state == (JobState.EXPIRED if is_due else JobState.ADMITTED)


def test_waits_are_ended_batch_by_batch(admit: AdmitOne, ahead: Ahead) -> None:
    for _ in range(5):
        admit()
    ahead(timedelta(hours=24, seconds=1))
    assert sweep(PassLimits(batch=2, seconds=30)).counts == {"wait_ended": 5}
    assert Job.objects.filter(state=JobState.EXPIRED).count() == 5


@pytest.fixture
def short_holds(policy: ServingPolicy) -> None:
    """Let holds run out before the leases of the jobs that they pay for."""
    policy.hold_ttl = timedelta(seconds=10)
    policy.save()


@pytest.mark.usefixtures("short_holds")
@EDGES
def test_a_waiting_job_expires_with_its_hold(
    admit: AdmitOne, set_clock: SetClock, offset: timedelta, is_due: bool
) -> None:
    job = admit()
    hold = Hold.objects.get(job=job)
    set_clock(hold.expires_at + offset)
    summary = sweep()
    job.refresh_from_db()
    hold.refresh_from_db()
    assert summary.counts == ({"job_expired": 1} if is_due else {})
    assert job.state == (JobState.EXPIRED if is_due else JobState.ADMITTED)
    assert hold.state == HoldState.HELD


@pytest.mark.usefixtures("short_holds")
def test_a_hold_that_a_running_job_keeps_is_looked_at_once_and_again_when_the_job_waits(
    begun: Claimed, set_clock: SetClock, worker: Registered
) -> None:
    set_clock(Hold.objects.get(job_id=begun.job_id).expires_at)
    assert [sweep().counts for _ in range(3)] == [{"kept": 1}, {}, {}]
    assert Finding.objects.get(job_id=begun.job_id).kind == holds.PAST_ITS_TIME

    attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )
    assert Job.objects.get(pk=begun.job_id).state == JobState.ADMITTED
    assert sweep().counts == {"job_expired": 1}
    assert Job.objects.get(pk=begun.job_id).state == JobState.EXPIRED


def test_a_freed_slot_can_be_granted_again_after_the_sweep(
    claimed: Claimed, ahead: Ahead, worker: Registered
) -> None:
    ahead(claimed.ttl + INSTANT)
    workers.seen(worker.worker_id)
    sweep()
    assert lease_queries.free_slots("gpu", now=clock.read()) == 2
