"""Doorbells and rings through Celery: hints that may be lost, doubled or late (SPEC D6)."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from uuid import UUID

from celery import Celery
from celery.exceptions import OperationalError as CeleryOperationalError
from kombu.exceptions import OperationalError as BrokerError

from leaseq.conf import settings
from leaseq.services.ports import Doorbell

log = logging.getLogger(__name__)

PASS_TASK = "leaseq.tasks.run_pass"  # noqa: S105 - a task's name
RING_EXPIRES_SECONDS = 10
LATER_SECONDS_MAX = 5.0
SEND_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}
SEND_ERRORS = (BrokerError, CeleryOperationalError, OSError)


class CeleryPorts:
    """Publishes through one Celery app; rings are gathered so that a burst costs one message."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._start_afresh()
        # A child of a fork has none of the parent's timers, and must not wait for one.
        os.register_at_fork(after_in_child=self._start_afresh)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._rung_at: dict[str, float] = {}
        self._pending: set[str] = set()

    def publish(self, doorbells: Sequence[Doorbell]) -> dict[UUID, str]:
        """Send each doorbell once; return the error text of each that the broker did not take.

        The task id is the attempt's, and all that a message says: a worker reads the rest from
        the database, so a forged one gains nothing (PROMISES S8).
        """
        errors: dict[UUID, str] = {}
        with self._app.producer_or_acquire() as producer:
            for bell in doorbells:
                try:
                    self._app.send_task(
                        bell.task,
                        task_id=str(bell.attempt_id),
                        queue=bell.queue,
                        producer=producer,
                        retry=True,
                        retry_policy=SEND_RETRY_POLICY,
                    )
                except SEND_ERRORS as error:
                    errors[bell.attempt_id] = f"{type(error).__name__}: {error}"
        return errors

    def ring(self, name: str) -> None:
        """Ask for one pass of the control plane now, or at the end of the gathering time.

        A broker that is away costs a log line: the beat's own ticks do the work later.
        """
        quiet = settings().bell_seconds
        with self._lock:
            waited = time.monotonic() - self._rung_at.get(name, float("-inf"))
            if waited >= quiet:
                self._rung_at[name] = time.monotonic()
                now = True
            elif name in self._pending:
                return
            else:
                self._pending.add(name)
                now = False
        if now:
            self._send_ring(name)
        else:
            threading.Timer(quiet - waited, self._ring_later, args=(name,)).start()

    def ring_later(self, name: str, seconds: float) -> None:
        """Ask for a pass once something is due; what is far off is left to the beat's ticks."""
        if seconds > LATER_SECONDS_MAX:
            return
        timer = threading.Timer(seconds, self.ring, args=(name,))
        timer.daemon = True
        timer.start()

    def _ring_later(self, name: str) -> None:
        with self._lock:
            self._pending.discard(name)
            self._rung_at[name] = time.monotonic()
        self._send_ring(name)

    def _send_ring(self, name: str) -> None:
        try:
            self._app.send_task(
                PASS_TASK,
                kwargs={"name": name},
                queue=settings().control_queue,
                expires=RING_EXPIRES_SECONDS,
                # Without a policy kombu tries to connect for seconds, and the caller waits.
                retry=True,
                retry_policy=SEND_RETRY_POLICY,
                ignore_result=True,
            )
        except SEND_ERRORS as error:
            log.warning("leaseq: no ring for pass %s, the beat will do it: %s", name, error)
