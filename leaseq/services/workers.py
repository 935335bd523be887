"""Register, see, drain and retire a worker process and the slots it offers (SPEC D2, M8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from leaseq.db import clock
from leaseq.db.identity import new_id
from leaseq.db.transactions import atomic
from leaseq.errors import TransitionRefused
from leaseq.models import Attempt, Slot, WorkerNode
from leaseq.vocabulary import UNCLOSED_ATTEMPT_STATES, TransitionRefusal, WorkerState

PRESENT = (WorkerState.LIVE, WorkerState.DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Who registers: the Celery node name, the process, the queues it consumes, its pool."""

    name: str
    node: str
    boot_id: str
    pid: int
    start_ticks: int
    queues: Sequence[str]
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One physical or declared unit of capacity on the worker's node."""

    unit: str
    share: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The incarnation and its slots, in the order in which they were named."""

    worker_id: UUID
    slot_ids: list[int]


def register(facts: WorkerFacts, *, slots: Sequence[SlotFacts]) -> Registered:
    """Write a new incarnation and make it the one that offers these slots (SPEC D2).

    A restarted worker meets the same slot rows; a lease of its predecessor on them counts until
    it expires or the predecessor is known to be dead.
    """
    with atomic():
        now = clock.read()
        worker = WorkerNode.objects.create(
            id=new_id(),
            name=facts.name,
            node=facts.node,
            boot_id=facts.boot_id,
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            queues=list(facts.queues),
            pool=facts.pool,
            started_at=now,
            seen_at=now,
        )
        slot_ids = []
        for one in slots:
            slot, _ = Slot.objects.update_or_create(
                node=facts.node,
                unit=one.unit,
                share=one.share,
                defaults={"worker": worker, "queues": list(facts.queues)},
                create_defaults={
                    "worker": worker,
                    "queues": list(facts.queues),
                    "first_seen_at": now,
                },
            )
            slot_ids.append(slot.pk)
    return Registered(worker_id=worker.pk, slot_ids=slot_ids)


def predecessors(facts: WorkerFacts, *, slots: Sequence[SlotFacts]) -> list[WorkerNode]:
    """Return the incarnations not yet known to be over that last offered these slots."""
    units = [one.unit for one in slots]
    return list(
        WorkerNode.objects.filter(
            slots__node=facts.node, slots__unit__in=units, state__in=PRESENT
        ).distinct()
    )


def seen(worker_id: UUID) -> WorkerState:
    """Note that a worker's main process lives, and return what is asked of it.

    Freshness grants no power over any lease (PROMISES Q7). Raises TransitionRefused for a worker
    that was declared over: it must register anew.
    """
    now = clock.read()
    worker = WorkerNode.objects.filter(pk=worker_id, state__in=PRESENT)
    if worker.update(seen_at=now) != 1:
        raise TransitionRefused(
            "this worker was declared over; it must register again",
            reason=TransitionRefusal.WORKER_NOT_LIVE,
            worker_id=worker_id,
        )
    return WorkerState(worker.values_list("state", flat=True).get())


def drain(worker_id: UUID) -> bool:
    """Ask a live worker to claim nothing more; returns whether it was live."""
    live = WorkerNode.objects.filter(pk=worker_id, state=WorkerState.LIVE)
    return live.update(state=WorkerState.DRAINING) == 1


def retire(worker_id: UUID) -> None:
    """Write that a worker stopped by itself, and give its slots back; safe to repeat."""
    _over(worker_id, WorkerState.STOPPED)


def declare_dead(worker_id: UUID) -> None:
    """Write that a worker process is provably gone; its leases may be swept at once."""
    _over(worker_id, WorkerState.DEAD)


def _over(worker_id: UUID, state: WorkerState) -> None:
    with atomic():
        now = clock.read()
        changed = WorkerNode.objects.filter(pk=worker_id, state__in=PRESENT).update(
            state=state, stopped_at=now
        )
        if changed:
            Slot.objects.filter(worker_id=worker_id).update(worker=None)


def unclosed_attempts(worker_id: UUID) -> list[UUID]:
    """Return the attempts that this incarnation claimed and that have not ended."""
    return list(
        Attempt.objects.filter(worker_id=worker_id, state__in=sorted(UNCLOSED_ATTEMPT_STATES))
        .order_by("pk")
        .values_list("pk", flat=True)
    )
