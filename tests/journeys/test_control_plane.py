"""The control plane over real processes: doorbells, beat, broker losses (SPEC D5, D6, G1)."""

import subprocess
import sys
import time
from decimal import Decimal

import pytest
import redis
from django.db import connection

from leaseq.models import Account, ControlPass, Job, PermitPool, Price
from leaseq.vocabulary import HoldState, JobState, PoolKind
from tests.journeys.conftest import Plant, wait_for

pytestmark = pytest.mark.journey


def test_a_freed_permit_is_given_on_within_a_second_without_beat(plant: Plant) -> None:
    PermitPool.objects.create(kind=PoolKind.ACCOUNT, key="acme", limit=1)
    plant.control(beat=False)
    plant.gpu(slots=2)
    first = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    second = plant.admit("journey.add", 1, 2)
    assert Job.objects.get(pk=second.pk).state == JobState.ADMITTED
    plant.let_go()
    first, second = plant.ended(first), plant.ended(second)
    claimed_at = second.attempts.get().claimed_at
    assert first.ended_at is not None
    assert claimed_at is not None
    waited = (claimed_at - first.ended_at).total_seconds()
    print(f"the freed permit was used after {waited:.3f} s")
    assert 0 <= waited < 1
    assert not ControlPass.objects.filter(name="expire").exists(), "no beat ticked"


def test_beat_runs_every_pass_and_settles(plant: Plant) -> None:
    Price.objects.create(
        provider="local",
        unit="second",
        currency="EUR",
        amount=Decimal(1),
        valid_from="2020-01-01T00:00Z",
    )
    plant.control()
    plant.gpu()
    job = plant.ended(plant.admit("journey.add", 1, 2))
    wait_for(lambda: Job.objects.get(pk=job.pk).settled_at, what="the settlement")
    assert job.holds.get().state == HoldState.RELEASED
    account = Account.objects.get()
    assert (account.held, account.settled) == (0, 0)
    expected = {"schedule", "renew", "expire", "settle"}
    wait_for(
        lambda: expected <= set(ControlPass.objects.values_list("name", flat=True)),
        what="every pass",
    )


def test_a_flushed_broker_loses_no_job(plant: Plant) -> None:
    plant.control()
    jobs = [plant.admit("journey.add", number, 1) for number in range(4)]
    wait_for(ControlPass.objects.exists, what="a first pass")
    client = redis.Redis.from_url(plant.broker.url)
    client.flushall()
    plant.gpu(slots=2)
    wait_for(lambda: Job.objects.exclude(state=JobState.ADMITTED).exists(), what="a reservation")
    client.flushall()
    client.close()
    ended = [plant.ended(job) for job in jobs]
    assert [job.state for job in ended] == [JobState.COMPLETED] * 4
    assert [job.attempts.count() for job in ended] == [1] * 4


def test_a_job_admitted_without_a_broker_runs_when_it_is_back(plant: Plant) -> None:
    plant.broker.stop()
    job = plant.admit("journey.add", 1, 2)
    assert Job.objects.get(pk=job.pk).state == JobState.ADMITTED
    plant.broker.start()
    plant.environment["LEASEQ_BROKER_URL"] = plant.broker.url
    plant.control()
    plant.gpu()
    assert plant.ended(job).state == JobState.COMPLETED


def test_a_long_wait_stays_in_the_database(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() + interval '4 seconds'")
        due = cursor.fetchone()[0]
    job = plant.admit("journey.add", 1, 2, not_before=due)
    job = plant.ended(job)
    started_at = job.attempts.get().started_at
    assert started_at is not None
    assert started_at >= due
    assert job.attempts.count() == 1


def test_forged_messages_change_nothing(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    done = plant.ended(plant.admit("journey.add", 1, 2))
    wait_for(lambda: Job.objects.get(pk=done.pk).settled_at, what="the settlement")
    before = list(Job.objects.values()), done.attempts.get().result
    attempt_id = str(done.attempts.get().pk)
    for task_id in (attempt_id, "01a22fbd-0000-7000-8000-000000000000", "no-uuid"):
        plant.app.send_task("journey.add", args=[5, 5], task_id=task_id, queue="gpu")
    plant.app.send_task("journey.plain", args=[str(plant.folder)], queue="gpu")
    wait_for((plant.folder / "plain").exists, what="the plain task behind the forged ones")
    assert (list(Job.objects.values()), done.attempts.get().result) == before
    assert plant.ended(plant.admit("journey.add", 2, 2)).attempts.get().result == 4


def test_a_worker_whose_connections_are_cut_completes_its_job_once(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 1
    renewals = job.leases.get(slot__isnull=False).renewal_count
    wait_for(
        lambda: job.leases.get(slot__isnull=False).renewal_count > renewals,
        what="a renewal after the cut",
    )
    plant.let_go()
    job = plant.ended(job)
    assert (job.state, job.attempts.count()) == (JobState.COMPLETED, 1)
    again = plant.ended(plant.admit("journey.add", 2, 2))
    assert again.attempts.get().result == 4


def test_a_busy_gpu_worker_never_starves_the_control_queue(plant: Plant) -> None:
    plant.control()
    plant.gpu()
    job = plant.admit("journey.hold", str(plant.folder))
    plant.started(1)
    wait_for(ControlPass.objects.filter(name="expire").exists, what="a first sweep")
    passes = ControlPass.objects.get(name="expire").finished_at
    wait_for(
        lambda: ControlPass.objects.get(name="expire").finished_at > passes,
        within_s=6,
        what="a sweep while the worker is busy",
    )
    plant.let_go()
    assert plant.ended(job).state == JobState.COMPLETED


def test_a_worker_says_what_is_wrong_when_the_database_is_away(plant: Plant) -> None:
    plant.environment["LEASEQ_DATABASE_URL"] = "postgres://leaseq@127.0.0.1:1/leaseq"
    began = time.monotonic()
    worker = plant.celery("gpu1", "gpu", 1)
    wait_for(lambda: not worker.is_running, what="the worker's end")
    assert "see that PostgreSQL runs and that DATABASES points to it" in worker.log_path.read_text()
    assert worker.exit_status != 0
    assert time.monotonic() - began < 30


def test_the_demo_says_no_to_a_bad_count() -> None:
    answer = subprocess.run(
        [sys.executable, "manage.py", "demo", "--jobs", "-3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "-3 is not from 12 to 2000" in answer.stderr
