"""One delivery: claim, run, conclude; a message that may not run is dropped (SPEC D4, D6)."""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from leaseq.owner.renewer import Cadence
from leaseq.services import attempts
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import AttemptState, Certainty, EndReason, JobState, TransitionRefusal
from leaseq.worker import seats
from leaseq.worker.board import BoardGuard
from leaseq.worker.handle import Lease
from leaseq.worker.presence import start_ticks_of
from leaseq.worker.seats import Seat

log = logging.getLogger(__name__)

LOCAL = "local"
PAUSE_SECONDS = 0.2
WITNESS_SECONDS = 60.0
T = TypeVar("T")


class RetryAsked(LeaseqError):  # noqa: N818 - the tree's own form: what happened, as a name
    """The task asked to be tried again: its attempt ends, and the next one waits its turn."""


class BadResult(LeaseqError):  # noqa: N818 - as RetryAsked
    """What the task returned cannot be stored, so its attempt failed."""


class _Dropped(Ignore):
    """Ours alone: a task that raises Ignore itself must not pass for an end on record."""


class _Here(threading.local):
    """What this thread is running."""

    attempt_id: UUID | None = None


_here = _Here()


def runs_here(attempt_id: UUID) -> bool:
    """Say whether this very thread is running the attempt: then its task has called itself."""
    return _here.attempt_id == attempt_id


@contextmanager
def _running(attempt_id: UUID) -> Iterator[None]:
    _here.attempt_id = attempt_id
    try:
        yield
    finally:
        _here.attempt_id = None


class Runnable(Protocol):
    """What the runner needs of a leased task."""

    name: str
    provider: str
    takes_lease: bool

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""


def deliver(task: Runnable, attempt_id: UUID) -> Any:
    """Run one attempt if this process may, and return its result.

    Raises Ignore for a message that comes twice, late or to the wrong worker, or names the attempt
    of another task, and for an attempt that was lost: nothing more is to be recorded of it. What
    the task raised is raised again after it was recorded, and BadResult for a result that cannot
    be stored.
    """
    seat = seats.read()
    index = seats.take_index(seat)
    try:
        return _deliver(task, attempt_id, seat=seat, index=index)
    finally:
        seats.give_back(index)


def _deliver(task: Runnable, attempt_id: UUID, *, seat: Seat, index: int) -> Any:
    drop_if_dead()
    if not Attempt.objects.filter(pk=attempt_id, job__task=task.name).exists():
        # Whoever can write to the broker could else run one task with the arguments of another.
        log.warning("leaseq: message dropped: %s has no attempt %s", task.name, attempt_id)
        raise _Dropped
    asked_at = boot_seconds()
    try:
        claimed = attempts.claim(attempt_id, worker_id=seat.worker_id, slot_id=seat.slot_ids[index])
    except TransitionRefused as refused:
        log.info("leaseq: message dropped: %s", refused)
        raise _Dropped from refused
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
            margin=Cadence.of(
                claimed.ttl,
                claimed.renew_every,
                margin_max=timedelta(seconds=settings().safety_margin_seconds),
            ).margin,
        ),
    )
    try:
        run = _Run(task, claimed, BoardGuard(board, index, proof), worker_id=seat.worker_id)
        with _running(attempt_id):
            return run()
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
            self._complete(result)
        except (_Dropped, BadResult):
            raise
        except CancelAsked as error:
            self._fail(EndReason.CANCELLED, error)
            raise _Dropped from error
        except OwnershipLost as error:
            self._stopped(error)
            raise _Dropped from error
        except OwnershipUncertain as error:
            self._fail(EndReason.HOLDER_STOPPED, error)
            raise _Dropped from error
        except RetryAsked as error:
            self._fail(EndReason.TASK_RETRY, error.__cause__ or error)
            raise _Dropped from error
        except ProviderError as error:
            unknown = error.outcome == "unknown"
            self._fail(
                EndReason.PROVIDER_UNKNOWN if unknown else EndReason.PROVIDER_REJECTED, error
            )
            raise
        except Exception as error:
            self._fail(EndReason.TASK_ERROR, error)
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            # This process is about to end; the cell is given up, so nobody else can tell.
            self._stopped(error)
            raise
        return result

    def _work(self) -> Any:
        claimed, task = self._claimed, self._task
        lease = Lease(claimed, self._guard, provider=task.provider, persist=self._persist)
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
            # To the owner this reason can only mean that a commit without an answer stood.
            owned = refused.reason is TransitionRefusal.NOT_A_LEGAL_MOVE
            if not (owned and self._stands(started_at__isnull=False)):
                self._stopped(refused)
                raise _Dropped from refused

    def _was_sent(self) -> bool:
        return self._stands(accepted_at__isnull=False)

    def _complete(self, result: Any) -> None:
        drop_if_dead()
        try:
            state = self._persist(lambda: attempts.complete(self._claimed.proof, result=result))
        except (TransitionRefused, OwnershipLost) as refused:
            if not self._stands(reason=EndReason.COMPLETED, state=AttemptState.COMPLETED):
                log.warning("leaseq: a late result is not recorded: %s", refused)
                self._stopped(refused)
                raise _Dropped from refused
            return
        if state not in (JobState.COMPLETED, JobState.CANCELLED):
            raise BadResult(
                f"the result of {self._task.name} cannot be stored, and its attempt says why; "
                "return small JSON, or store it elsewhere and return its name",
                attempt_id=self._claimed.proof.attempt_id,
            )

    def _fail(self, cause: EndReason, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        try:
            self._persist(
                lambda: attempts.fail(self._claimed.proof, cause=cause, error=text[-4_000:])
            )
        except (TransitionRefused, OwnershipLost) as refused:
            log.warning("leaseq: the end of a lost attempt is not recorded: %s", refused)
            self._stopped(refused)

    def _stopped(self, why: BaseException) -> None:
        """Bear witness that the work of a lost attempt has ended here (SPEC L5a).

        Often the database was away, so it is tried for a while: an attempt that was possibly sent
        waits for this word. In a prefork pool the hard stop ends the waiting, and the heartbeat
        says it of the dead process.
        """
        attempt_id, until = self._claimed.proof.attempt_id, boot_seconds() + WITNESS_SECONDS
        log.warning("leaseq: attempt %s stopped: %s", attempt_id, why)
        while True:
            try:
                attempts.lose_of_worker(
                    attempt_id, worker_id=self._worker_id, cause=EndReason.HOLDER_STOPPED
                )
            except (OperationalError, InterfaceError) as error:
                connection().close()
                if boot_seconds() >= until:
                    log.error("leaseq: nobody heard that %s stopped: %s", attempt_id, error)  # noqa: TRY400 - no traceback
                    return
                time.sleep(PAUSE_SECONDS)
            else:
                return

    def _stands(self, **facts: Any) -> bool:
        """Say whether the attempt stands so: after a lost answer of COMMIT it may have ended."""
        row = Attempt.objects.filter(pk=self._claimed.proof.attempt_id, **facts)
        return self._persist(row.exists)

    def _persist(self, act: Callable[[], T]) -> T:
        """Do a verb of the authority, again on a new connection while the lease may be held.

        Raises OwnershipLost where the lease ran out first.
        """
        while True:
            try:
                return act()
            except (OperationalError, InterfaceError) as error:
                connection().close()
                if self._guard.certainty() is Certainty.LOST:
                    raise OwnershipLost(
                        "the database did not answer until the lease was lost",
                        attempt_id=self._claimed.proof.attempt_id,
                    ) from error
                log.warning("leaseq: the database did not answer, trying again: %s", error)
                time.sleep(PAUSE_SECONDS)
