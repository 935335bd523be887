"""One place for fixtures; each is built from a smaller one: account, job, queued, claimed."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

os.environ.setdefault("LEASEQ_DEBUG", "1")

from django.db import connections

from leaseq.models import Account, Job, Price, ServingPolicy
from leaseq.services import admission, attempts, outbox, ports, scheduling, workers
from leaseq.services.admission import AdmissionRequest
from leaseq.services.attempts import Claimed
from leaseq.services.ports import Doorbell
from leaseq.services.workers import Registered, SlotFacts, WorkerFacts
from project.demo.services import EmbeddedBroker, EmbeddedPostgres

LONG_AGO = "2020-01-01T00:00:00+00:00"


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this test run alone."""
    with EmbeddedPostgres(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A Redis-protocol broker of this test run alone."""
    with EmbeddedBroker() as server:
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: EmbeddedPostgres) -> None:
    """Point Django at the embedded PostgreSQL before it makes the test database."""
    settings = connections["default"].settings_dict
    settings.update(HOST="127.0.0.1", PORT=str(postgres.port), USER="leaseq", NAME="leaseq")


@dataclass
class RecordingPorts:
    """Ports that keep what was published and rung instead of sending it."""

    doorbells: list[Doorbell] = field(default_factory=list)
    rings: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    broken: bool = False

    def publish(self, doorbells: Sequence[Doorbell]) -> dict[UUID, str]:
        """Keep the doorbells, or fail each of them while the broker is said to be broken."""
        if self.broken:
            return {one.attempt_id: "ConnectionError: the broker is away" for one in doorbells}
        self.doorbells += doorbells
        return {}


@pytest.fixture(autouse=True)
def recording_ports() -> RecordingPorts:
    """Let no test reach a broker that it did not start."""
    recording = RecordingPorts()
    ports.install(
        ports.Ports(
            publish=recording.publish,
            ring=recording.rings.append,
            ring_later=lambda name, _seconds: recording.later.append(name),
        )
    )
    return recording


@pytest.fixture
def account(db: None) -> Account:
    """An account with 100 euros to spend."""
    return Account.objects.create(name="acme", currency="EUR", limit=Decimal(100))


@pytest.fixture
def policy(db: None) -> ServingPolicy:
    """A policy with defaults, and a ceiling of 1 per job."""
    return ServingPolicy.objects.create(name="batch", cost_ceiling=Decimal(1))


@pytest.fixture
def prices(db: None) -> list[Price]:
    """Prices per token of the private provider."""
    return [
        Price.objects.create(
            provider="private",
            unit=unit,
            currency="EUR",
            amount=Decimal(amount),
            valid_from=LONG_AGO,
        )
        for unit, amount in [("prompt_token", "0.000001"), ("completion_token", "0.000002")]
    ]


@pytest.fixture
def admit(account: Account, policy: ServingPolicy) -> Callable[..., Job]:
    """Admit a job with defaults, any of which a test may replace."""

    def admit_one(**asked: Any) -> Job:
        request = {
            "task": "tests.nothing",
            "queue": "gpu",
            "account": account.name,
            "policy": policy.name,
        } | asked
        admitted = admission.admit(AdmissionRequest(**request), actor="user:test")
        return Job.objects.get(pk=admitted.job_id)

    return admit_one


@pytest.fixture
def job(admit: Callable[..., Job]) -> Job:
    """A job that waits."""
    return admit()


@pytest.fixture
def worker(db: None) -> Registered:
    """A live worker with two slots on the queue `gpu`."""
    return register_worker("gpu1@here", slots=2)


def register_worker(name: str, *, slots: int, queue: str = "gpu", pid: int = 4711) -> Registered:
    """Register a worker of a node that is not this machine."""
    return workers.register(
        WorkerFacts(
            name=name,
            node="here",
            boot_id="boot",
            pid=pid,
            start_ticks=1,
            queues=[queue],
            pool="prefork",
        ),
        slots=[SlotFacts(unit=f"{name}:{index}") for index in range(slots)],
    )


@pytest.fixture
def queued_job(job: Job, worker: Registered) -> Job:
    """A job that was reserved and whose message was sent."""
    scheduling.reserve("gpu", limit=10)
    outbox.take_due(limit=10)
    job.refresh_from_db()
    return job


@pytest.fixture
def claimed(queued_job: Job, worker: Registered) -> Claimed:
    """An attempt that the worker owns and has not begun."""
    attempt = queued_job.attempts.get()
    return attempts.claim(attempt.pk, worker_id=worker.worker_id, slot_id=worker.slot_ids[0])


@pytest.fixture
def begun(claimed: Claimed) -> Claimed:
    """An attempt that runs."""
    attempts.begin(claimed.proof)
    return claimed
