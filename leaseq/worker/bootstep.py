"""The bootstep: registers slots and starts the heartbeat with a worker (SPEC D2, D3)."""

import atexit
import logging
import os
from typing import Any
from uuid import UUID

from celery import bootsteps
from celery.signals import worker_shutdown
from django.db import Error as DatabaseError

from leaseq.conf import settings
from leaseq.controllers import serve
from leaseq.db.transactions import connection
from leaseq.errors import Misconfigured, Unavailable
from leaseq.models import ServingPolicy
from leaseq.services import attempts, workers
from leaseq.services.workers import SlotFacts, WorkerFacts
from leaseq.vocabulary import EndReason
from leaseq.worker import seats, slots
from leaseq.worker.heartbeat import Heartbeat
from leaseq.worker.presence import ProcessIdentity, is_dead, own_identity
from leaseq.worker.seats import Seat
from leaseq.worker.stop import Stopper

log = logging.getLogger(__name__)

PREFORK = "prefork"
POOLS = {"celery.concurrency.prefork": PREFORK, "celery.concurrency.thread": "threads"}
SOLO = "celery.concurrency.solo"


class LeaseBootstep(bootsteps.StartStopStep):
    """Runs in the main process of every worker that consumes a queue of leased tasks.

    A worker of the control queue alone offers no slot and gets no heartbeat.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: object) -> None:
        super().__init__(worker, **kwargs)
        self._heartbeat: Heartbeat | None = None
        self._stopper: Stopper | None = None

    def start(self, worker: Any) -> None:
        """Register this incarnation before the consumer starts, then beat.

        Raises Misconfigured for a pool that cannot hold leases, Unavailable where the database
        does not answer; the worker then stops and says so.
        """
        queues = [
            name for name in worker.app.amqp.queues.consume_from
            if name != settings().control_queue
        ]  # fmt: skip
        if not queues:
            return
        pool = _pool_kind(worker)
        concurrency = worker.max_concurrency or worker.concurrency
        devices = [one for one in os.environ.get(slots.DEVICES_VARIABLE, "").split(",") if one]
        units = slots.share_out(
            worker_name=worker.hostname,
            concurrency=concurrency,
            declared=settings().slots,
            devices=devices,
        )
        offered = [SlotFacts(unit=unit) for unit in units]
        serve.providers()
        try:
            _judge_policies(pool)
            worker_id = self._register(worker, queues, pool, offered)
        except DatabaseError as error:
            raise Unavailable(
                f"the database does not answer ({error}), so this worker cannot register its "
                "slots; see that PostgreSQL runs and that DATABASES points to it"
            ) from error
        finally:
            connection().close()
        self._start_threads(worker_id, pool)
        worker_shutdown.connect(self._farewell, weak=False)
        atexit.register(self._farewell)

    def _register(
        self, worker: Any, queues: list[str], pool: str, offered: list[SlotFacts]
    ) -> UUID:
        own = own_identity()
        facts = WorkerFacts(
            name=worker.hostname,
            node=own.node,
            boot_id=own.boot_id,
            pid=own.pid,
            start_ticks=own.start_ticks,
            queues=queues,
            pool=pool,
        )
        bury_predecessors(facts, offered)
        registered = workers.register(facts, slots=offered)
        seats.write(Seat(registered.worker_id, registered.slot_ids, pool))
        log.info("leaseq: %d slots offered to %s", len(offered), ", ".join(queues))
        return registered.worker_id

    def _start_threads(self, worker_id: UUID, pool: str) -> None:
        prefork = pool == PREFORK
        board = seats.board()
        self._heartbeat = Heartbeat(board, worker_id=worker_id, watches_processes=prefork)
        self._heartbeat.start()
        if prefork:
            self._stopper = Stopper(board, grace_of=self._heartbeat.stop_grace_of)
            self._stopper.start()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """Claim nothing more; the heartbeat goes on until the pool has finished its tasks."""
        if self._heartbeat is None:
            return
        try:
            workers.drain(self._heartbeat.worker_id)
        except DatabaseError as error:
            log.warning("leaseq: could not say that this worker drains: %s", error)
        finally:
            connection().close()

    def terminate(self, worker: Any) -> None:
        """Do as `stop` does; what the pool's killed processes held is reported at the end."""
        self.stop(worker)

    def _farewell(self, **_signal: object) -> None:
        """Give back what is still held and the slots, once, after the pool has ended."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is None or os.getpid() != seats.board().parent_pid:
            return
        heartbeat.finish()
        if self._stopper is not None:
            self._stopper.finish()
        try:
            for held in seats.board().holding():
                attempts.lose_of_worker(
                    held.proof.attempt_id,
                    worker_id=heartbeat.worker_id,
                    cause=EndReason.WORKER_SHUTDOWN,
                )
            workers.retire(heartbeat.worker_id)
        except DatabaseError as error:
            log.warning("leaseq: could not give the slots back, they expire: %s", error)
        finally:
            connection().close()


def _judge_policies(pool: str) -> None:
    """Refuse policies whose leases this worker could not keep, before any is held (case C1).

    Raises Misconfigured, naming the policy and the mend.
    """
    for policy in ServingPolicy.objects.filter(is_open=True):
        try:
            policy.check_cadence()
        except Misconfigured as error:
            raise Misconfigured(f"the policy {policy.name!r}: {error.message}") from error
        if pool != PREFORK and not policy.cooperative_only:
            log.warning(
                "leaseq: the policy %r counts on hard stops, which the pool %s does not have; mark "
                "it cooperative_only if its tasks look at their lease, or use --pool=prefork",
                policy.name,
                pool,
            )


def _pool_kind(worker: Any) -> str:
    module = worker.pool_cls.__module__
    if module in POOLS:
        return POOLS[module]
    if module == SOLO:
        return "solo"
    raise Misconfigured(
        f"leased tasks do not run in the pool {module}: use --pool=prefork, or threads or solo "
        "for policies with cooperative_only"
    )


def bury_predecessors(facts: WorkerFacts, offered: list[SlotFacts]) -> None:
    """Declare dead whoever offered these slots before and is provably gone (case B2, B4).

    Raises Misconfigured where it provably lives: two workers cannot offer one slot.
    """
    for old in workers.predecessors(facts, slots=offered):
        gone = is_dead(
            ProcessIdentity(
                node=old.node, boot_id=old.boot_id, pid=old.pid, start_ticks=old.start_ticks
            )
        )
        if gone is False:
            raise Misconfigured(
                f"process {old.pid} runs as {old.name} and offers the same slots; stop it, or "
                "give this worker another name with --hostname"
            )
        if gone:
            workers.declare_dead(old.pk)
            for attempt_id in workers.unclosed_attempts(old.pk):
                attempts.lose_of_worker(attempt_id, worker_id=old.pk, cause=EndReason.WORKER_LOST)
