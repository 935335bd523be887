"""One delivery: claim, run, conclude; a message that may not run is dropped (SPEC D4, D6)."""

import logging
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from celery.exceptions import Ignore
from django.db import InterfaceError, OperationalError

from leaseq.conf import settings
from leaseq.db.transactions import connection, drop_if_dead
from leaseq.errors import (
    CancelAsked,
    LeaseqError,
    OwnershipLost,
    OwnershipUncertain,
    ProviderError,
    TransitionRefused,
)
from leaseq.models import Attempt
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Proof
from leaseq.services import attempts
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import UNCLOSED_ATTEMPT_STATES, Certainty, EndReason
from leaseq.worker import seats
from leaseq.worker.board import BoardGuard
from leaseq.worker.handle import Lease
from leaseq.worker.presence import start_ticks_of
from leaseq.worker.seats import Seat

log = logging.getLogger(__name__)

LOCAL = "local"
PAUSE_SECONDS = 0.2
T = TypeVar("T")


class RetryAsked(LeaseqError):  # noqa: N818 - the tree's own form: what happened, as a name
    """The task asked to be tried again: its attempt ends, and the next one waits its turn."""


class Runnable(Protocol):
    """What the runner needs of a leased task."""

    name: str
    provider: str
    takes_lease: bool

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""


def deliver(task: Runnable, attempt_id: UUID) -> Any:
    """Run one attempt if this process may, and return its result.

    Raises Ignore for a message that comes twice, late or to the wrong worker, and for an attempt
    that was lost: nothing more is to be recorded of it. What the task raised is raised again
    after it was recorded.
    """
    seat = seats.read()
    index = seats.take_index(seat)
    try:
        return _deliver(task, attempt_id, seat=seat, index=index)
    finally:
        seats.give_back(index)


def _deliver(task: Runnable, attempt_id: UUID, *, seat: Seat, index: int) -> Any:
    drop_if_dead()
    asked_at = boot_seconds()
    try:
        claimed = attempts.claim(attempt_id, worker_id=seat.worker_id, slot_id=seat.slot_ids[index])
    except TransitionRefused as refused:
        log.info("leaseq: message dropped: %s", refused)
        raise Ignore from refused
    proof = _board_proof(claimed)
    board = seats.board()
    pid = os.getpid()
    board.hold(
        index,
        pid=pid,
        start_ticks=start_ticks_of(pid) or 0,
        proof=proof,
        ttl=claimed.ttl,
        renew_every=claimed.renew_every,
        claimed_at=asked_at,
        deadline=Deadline.measured(
            asked_at=asked_at,
            remaining=claimed.remaining,
            margin=min(timedelta(seconds=settings().safety_margin_seconds), claimed.ttl / 10),
        ),
    )
    try:
        return _Run(task, claimed, BoardGuard(board, index, proof), worker_id=seat.worker_id)()
    finally:
        board.release(index)


def _board_proof(claimed: Claimed) -> Proof:
    proof = claimed.proof
    return Proof(
        lease_id=proof.lease_id,
        attempt_id=proof.attempt_id,
        fence_epoch=proof.fence.epoch,
        fence=proof.fence.counter,
    )


class _Run:
    """One claimed attempt on its way to an end."""

    def __init__(
        self, task: Runnable, claimed: Claimed, guard: BoardGuard, *, worker_id: UUID
    ) -> None:
        self._task = task
        self._claimed = claimed
        self._guard = guard
        self._worker_id = worker_id

    def __call__(self) -> Any:
        try:
            result = self._work()
        except CancelAsked as error:
            self._fail(EndReason.CANCELLED, error)
            raise Ignore from error
        except OwnershipLost as error:
            self._stopped(error)
            raise Ignore from error
        except OwnershipUncertain as error:
            self._fail(EndReason.HOLDER_STOPPED, error)
            raise Ignore from error
        except RetryAsked as error:
            self._fail(EndReason.TASK_RETRY, error.__cause__ or error)
            raise Ignore from error
        except ProviderError as error:
            unknown = error.outcome == "unknown"
            self._fail(
                EndReason.PROVIDER_UNKNOWN if unknown else EndReason.PROVIDER_REJECTED, error
            )
            raise
        except Ignore:
            raise
        except Exception as error:
            self._fail(EndReason.TASK_ERROR, error)
            raise
        self._complete(result)
        return result

    def _work(self) -> Any:
        claimed, task = self._claimed, self._task
        lease = Lease(claimed, self._guard, provider=task.provider)
        if task.provider == LOCAL:
            self._begin()
        args = [lease, *claimed.args] if task.takes_lease else claimed.args
        result = task.run(*args, **claimed.kwargs)
        if task.provider != LOCAL and not self._was_sent():
            # The task needed no provider after all: its own code was the compute.
            self._begin()
        return result

    def _begin(self) -> None:
        try:
            self._persist(lambda: attempts.begin(self._claimed.proof))
        except TransitionRefused as refused:
            self._stopped(refused)
            raise Ignore from refused

    def _was_sent(self) -> bool:
        row = Attempt.objects.filter(pk=self._claimed.proof.attempt_id, accepted_at__isnull=False)
        return self._persist(row.exists)

    def _complete(self, result: Any) -> None:
        drop_if_dead()
        try:
            self._persist(lambda: attempts.complete(self._claimed.proof, result=result))
        except TransitionRefused as refused:
            if not self._ended_by_us():
                log.warning("leaseq: a late result is not recorded: %s", refused)
                self._stopped(refused)
                raise Ignore from refused

    def _fail(self, cause: EndReason, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        try:
            self._persist(
                lambda: attempts.fail(self._claimed.proof, cause=cause, error=text[-4_000:])
            )
        except TransitionRefused as refused:
            log.warning("leaseq: the end of a lost attempt is not recorded: %s", refused)
            self._stopped(refused)

    def _stopped(self, why: BaseException) -> None:
        """Bear witness that the work of a lost attempt has ended here (SPEC L5a)."""
        log.warning("leaseq: attempt %s stopped: %s", self._claimed.proof.attempt_id, why)
        attempts.lose_of_worker(
            self._claimed.proof.attempt_id,
            worker_id=self._worker_id,
            cause=EndReason.HOLDER_STOPPED,
        )

    def _ended_by_us(self) -> bool:
        """After a lost answer of COMMIT, say whether the attempt had ended by it after all."""
        row = Attempt.objects.filter(
            pk=self._claimed.proof.attempt_id, reason=EndReason.COMPLETED
        ).exclude(state__in=sorted(UNCLOSED_ATTEMPT_STATES))
        return row.exists()

    def _persist(self, act: Callable[[], T]) -> T:
        """Do a verb of the authority, again on a new connection while the lease may be held."""
        while True:
            try:
                return act()
            except (OperationalError, InterfaceError) as error:
                connection().close()
                if self._guard.certainty() is Certainty.LOST:
                    raise
                log.warning("leaseq: the database did not answer, trying again: %s", error)
                time.sleep(PAUSE_SECONDS)
