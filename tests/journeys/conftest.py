"""A plant: real worker processes on the test database and a broker of their own."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from celery import Celery
from django.db import connection

from leaseq.conf import settings
from leaseq.models import Account, Job, ServingPolicy, WorkerNode
from leaseq.services import admission
from leaseq.services.admission import AdmissionRequest
from leaseq.vocabulary import TERMINAL_JOB_STATES, WorkerState
from leaseq.worker import beat_rows, wiring
from project.demo.processes import ChildProcess
from project.demo.services import EmbeddedBroker, EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
TTL = timedelta(seconds=3)
WITHIN_S = 40.0


T = TypeVar("T")


def wait_for(look: Callable[[], T], *, within_s: float = WITHIN_S, what: str = "") -> T:
    """Return what `look` sees once it is true; fails after the bound."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"not seen within {within_s:g} s: {what or look}")


class Plant:
    """Workers on the test database; every process it started is gone after the test."""

    def __init__(self, postgres: EmbeddedPostgres, broker: EmbeddedBroker, folder: Path) -> None:
        database = connection.settings_dict["NAME"]
        self.folder = folder
        self.broker = broker
        self.environment = dict(os.environ) | {
            "DJANGO_SETTINGS_MODULE": "tests.journeys.site.settings",
            "LEASEQ_DEBUG": "1",
            "LEASEQ_DATABASE_URL": postgres.url_for(str(database)),
            "LEASEQ_BROKER_URL": broker.url,
        }
        self._running: list[ChildProcess] = []
        self.app = Celery("journeys", broker=broker.url)
        wiring.install(self.app)

    def control(self, *, beat: bool = True) -> ChildProcess:
        """Start a worker on the control queue alone, with beat in it or without."""
        extra = ["--beat"] if beat else []
        return self.celery("control", settings().control_queue, 1, *extra)

    def gpu(
        self, name: str = "gpu1", *, slots: int = 1, pool: str = "prefork", queue: str = "gpu"
    ) -> ChildProcess:
        """Start a worker with so many slots and return it once it is registered."""
        child = self.celery(name, queue, slots, "--pool", pool)
        mine = WorkerNode.objects.filter(pid=child.pid, state=WorkerState.LIVE)
        child.wait_until_ready(mine.exists, within_s=WITHIN_S)
        return child

    def admit(self, task: str, *args: Any, **asked: Any) -> Job:
        """Admit a job from this process, as a web server would."""
        request: dict[str, Any] = {
            "task": task,
            "queue": "gpu",
            "account": "acme",
            "policy": "brisk",
            "args": args,
        }
        admitted = admission.admit(AdmissionRequest(**request | asked), actor="user:test")
        return Job.objects.get(pk=admitted.job_id)

    def ended(self, job: Job, *, within_s: float = WITHIN_S) -> Job:
        """Return the job once it has ended."""
        wait_for(
            lambda: self._fresh(job.pk).state in TERMINAL_JOB_STATES,
            within_s=within_s,
            what=f"the end of {job}; logs: {self.logs()}",
        )
        return self._fresh(job.pk)

    def started(self, number: int, *, within_s: float = WITHIN_S) -> int:
        """Return the pid of attempt `number` of the job that reports into this folder."""
        path = self.folder / f"started-{number}"
        wait_for(path.exists, within_s=within_s, what=f"{path.name}; logs: {self.logs()}")
        return int(path.read_text() or 0)

    def let_go(self) -> None:
        """Let the tasks that wait in this folder finish."""
        (self.folder / "go").touch()

    def logs(self) -> str:
        """Return the end of every log."""
        return "\n".join(f"== {one.name}\n{one.log_tail()}" for one in self._running)

    def close(self) -> None:
        """Stop every process, the latest first."""
        while self._running:
            self._running.pop().stop()
        self.app.close()

    def _fresh(self, job_id: UUID) -> Job:
        return Job.objects.get(pk=job_id)

    def celery(self, name: str, queue: str, slots: int, *extra: str) -> ChildProcess:
        """Start a worker and return it at once."""
        child = ChildProcess(
            f"{name}-{len(self._running)}",
            [
                sys.executable, "-m", "celery", "-A", "project", "worker",
                "--queues", queue, "--concurrency", str(slots),
                "--hostname", f"{name}@%h", "--loglevel", "info",
                "--without-mingle", "--without-gossip", *extra,
            ],
            log_path=self.folder / f"{name}-{len(self._running)}.log",
            directory=ROOT,
            stop_within_s=20.0,
            environment=self.environment,
        )  # fmt: skip
        self._running.append(child)
        child.start()
        return child


@pytest.fixture
def plant(transactional_db: None, postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Plant]:
    """An account, a policy with a short ttl, and no worker yet."""
    Account.objects.create(name="acme", currency="EUR", limit=Decimal(100))
    ServingPolicy.objects.create(
        name="brisk",
        cost_ceiling=Decimal(1),
        lease_ttl=TTL,
        renew_every=TTL / 4,
        stop_grace=timedelta(seconds=1),
        retry_base=timedelta(milliseconds=50),
        retry_cap=timedelta(milliseconds=100),
        cooperative_only=True,
    )
    beat_rows.install(reset=False)
    with EmbeddedBroker() as broker:
        made = Plant(postgres, broker, tmp_path)
        try:
            yield made
        finally:
            made.close()
