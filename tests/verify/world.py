"""A small installation with a job of every outcome, driven through the services alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from leaseq.models import Account, Job, PermitPool, Price, ServingPolicy
from leaseq.services import (
    admission,
    attempts,
    cancellation,
    dispatch,
    holds,
    leases,
    outbox,
    ports,
    scheduling,
    workers,
)
from leaseq.services.admission import AdmissionRequest
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Intent, Target
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered, SlotFacts, WorkerFacts
from leaseq.vocabulary import EndReason, RequestState

LONG_AGO = "2020-01-01T00:00:00+00:00"
EARLY = (
    "completed",
    "settled",
    "overage",
    "unpriced",
    "failed",
    "cancelled",
    "cancelled_late",
    "lost",
    "resent",
    "unknown",
    "given_up",
)
IMPATIENT = ("queue_expired", "hold_expired")
LATE = ("running", "queued")
SLOTS = 8
TWO_TOKENS = {"prompt_token": Decimal(2), "completion_token": Decimal(3)}


class Time:
    """The authority's clock, moved on by the test and never back."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._read = read
        self._moved_on = timedelta(0)

    def read(self) -> datetime:
        return self._read() + self._moved_on

    def move_on(self, span: timedelta) -> None:
        self._moved_on += span


@dataclass
class World:
    """The jobs by what became of them, the worker that ran them, and the time."""

    time: Time
    jobs: dict[str, UUID] = field(default_factory=dict)
    worker: Registered = field(
        default_factory=lambda: Registered(worker_id=UUID(int=0), slot_ids=[])
    )
    taken: int = 0

    def claim(self, name: str) -> Claimed:
        job = Job.objects.get(pk=self.jobs[name])
        attempt = job.attempts.get(number=job.current_attempt_number)
        slot = self.worker.slot_ids[self.taken % SLOTS]
        self.taken += 1
        return attempts.claim(attempt.pk, worker_id=self.worker.worker_id, slot_id=slot)

    def send(self, claimed: Claimed, *, ends_with_connection: bool) -> Intent:
        target = Target(
            provider="private",
            endpoint="http://127.0.0.1:8080",
            model="small",
            ends_with_connection=ends_with_connection,
        )
        return dispatch.record_intent(claimed.proof, target=target, body=b"Hello")


def build(time: Time) -> World:
    """Make the installation; the clock of `leaseq.db` must be this one."""
    ports.install(
        ports.Ports(publish=lambda _: {}, ring=lambda _: None, ring_later=lambda _, __: None)
    )
    world = World(time)
    _set_up(world)
    scheduling.reserve("gpu", limit=100)
    outbox.take_due(limit=100)
    _end_by_owners(world)
    _lose(world)
    _let_time_pass(world)
    _settle(world)
    _leave_at_work(world)
    return world


def _set_up(world: World) -> None:
    Account.objects.create(name="acme", currency="EUR", limit=Decimal(100))
    ServingPolicy.objects.create(name="batch", cost_ceiling=Decimal(1))
    ServingPolicy.objects.create(
        name="impatient",
        cost_ceiling=Decimal(1),
        queue_age_max=timedelta(minutes=10),
        hold_ttl=timedelta(minutes=5),
    )
    PermitPool.objects.create(kind="account", key="acme", limit=50)
    PermitPool.objects.create(kind="queue", key="gpu", limit=50)
    for unit, amount in [("prompt_token", "0.000001"), ("completion_token", "0.123456789")]:
        Price.objects.create(
            provider="private", unit=unit, currency="EUR", amount=amount, valid_from=LONG_AGO
        )
    world.worker = workers.register(
        WorkerFacts(
            name="gpu1@here",
            node="here",
            boot_id="boot",
            pid=4711,
            start_ticks=1,
            queues=["gpu", "late"],
            pool="prefork",
        ),
        slots=[SlotFacts(unit=f"GPU-{index}") for index in range(SLOTS)],
    )
    workers.register(
        WorkerFacts(
            name="gpu2@there",
            node="there",
            boot_id="b",
            pid=1,
            start_ticks=1,
            queues=[],
            pool="solo",
        ),
        slots=[],
    )
    for name in EARLY:
        _admit(world, name, queue="gpu", cost_ceiling="0.2" if name == "overage" else None)
    for name in IMPATIENT:
        _admit(world, name, queue=name, policy="impatient")
    for name in LATE:
        _admit(world, name, queue="late")
    _admit(world, "waiting", queue="nobody", idempotency_key="once")


def _admit(world: World, name: str, **asked: Any) -> None:
    wanted = {"task": f"tests.{name}", "account": "acme", "policy": "batch"} | asked
    admitted = admission.admit(AdmissionRequest(**wanted), actor="user:test")
    world.jobs[name] = admitted.job_id


def _end_by_owners(world: World) -> None:
    plain = world.claim("completed")
    attempts.begin(plain.proof)
    attempts.progress(plain.proof, report={"done": 1})
    leases.renew_many([Renewal(proof=plain.proof)])
    attempts.complete(plain.proof, result={"text": "done"})
    for name, quantities in [
        ("settled", TWO_TOKENS),
        ("overage", TWO_TOKENS),
        ("unpriced", {"unheard_of": Decimal(1)}),
    ]:
        claimed = world.claim(name)
        intent = world.send(claimed, ends_with_connection=True)
        _answer(intent, quantities)
        attempts.complete(claimed.proof, result={"text": "Hello yourself"})
    failing = world.claim("failed")
    attempts.begin(failing.proof)
    attempts.fail(failing.proof, cause=EndReason.TASK_ERROR, error="ValueError: no")
    cancellation.ask(world.jobs["cancelled"], actor="user:test", reason="not needed")
    late = world.claim("cancelled_late")
    attempts.begin(late.proof)
    cancellation.ask(world.jobs["cancelled_late"], actor="user:test", reason="too slow")
    attempts.complete(late.proof, result={"text": "too late"})


def _answer(intent: Intent, quantities: dict[str, Decimal]) -> None:
    dispatch.record_accepted(intent, provider_request_id="p-1")
    dispatch.record_started(intent)
    dispatch.record_ended(intent, state=RequestState.SUCCEEDED, quantities=quantities)


def _lose(world: World) -> None:
    """Attempts whose owner falls silent; one sent a request that ended with its connection."""
    lost = world.claim("lost")
    attempts.begin(lost.proof)
    leases.renew_many([Renewal(proof=lost.proof)])
    resent = world.claim("resent")
    dispatch.record_accepted(
        world.send(resent, ends_with_connection=True), provider_request_id="p-2"
    )
    attempts.lose_of_worker(
        resent.proof.attempt_id, worker_id=world.worker.worker_id, cause=EndReason.WORKER_LOST
    )
    for name in ("unknown", "given_up"):
        claimed = world.claim(name)
        leases.renew_many([Renewal(proof=claimed.proof)])
        world.send(claimed, ends_with_connection=False)


def _let_time_pass(world: World) -> None:
    world.time.move_on(timedelta(minutes=6))
    for name in ("lost", "unknown", "given_up"):
        leases.expire(world.jobs[name], actor="control:expire")
    holds.meet_expiry(world.jobs["hold_expired"])
    world.time.move_on(timedelta(minutes=6))
    scheduling.expire_waiting(limit=10)
    scheduling.reserve("gpu", limit=10)
    for name in ("lost", "resent"):
        again = world.claim(name)
        intent = world.send(again, ends_with_connection=True)
        _answer(intent, TWO_TOKENS)
        attempts.complete(again.proof, result=name)
    ServingPolicy.objects.filter(name="batch").update(uncertain_max=timedelta(seconds=1))
    leases.resolve_unknown(world.jobs["given_up"], actor="control:expire")
    ServingPolicy.objects.filter(name="batch").update(uncertain_max=timedelta(hours=24))


def _settle(world: World) -> None:
    for job_id in world.jobs.values():
        holds.settle(job_id)


def _leave_at_work(world: World) -> None:
    scheduling.reserve("late", limit=10)
    outbox.take_due(limit=10)
    running = world.claim("running")
    attempts.begin(running.proof)
    for _ in range(3):
        leases.renew_many([Renewal(proof=running.proof)])
