"""A holder on the board and a heartbeat by hand, for the tests of the heartbeat."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from leaseq.models import Lease as LeaseRow
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Proof
from leaseq.services import leases
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.worker import heartbeat as heartbeat_module
from leaseq.worker.board import Board, BoardGuard
from leaseq.worker.cell import Told
from leaseq.worker.heartbeat import Heartbeat
from leaseq.worker.presence import start_ticks_of

SECOND = timedelta(seconds=1)
RENEW_EVERY_S = 10.0


def proof_of(claimed: Claimed) -> Proof:
    return Proof(
        claimed.proof.lease_id,
        claimed.proof.attempt_id,
        claimed.proof.fence.epoch,
        claimed.proof.fence.counter,
    )


def hold(
    board: Board, claimed: Claimed, *, index: int = 0, pid: int | None = None, age: float = 0.0
) -> BoardGuard:
    """Stand on the board as a holder whose claim is so many seconds old."""
    holder = os.getpid() if pid is None else pid
    claimed_at = boot_seconds() - age
    board.hold(
        index,
        pid=holder,
        start_ticks=start_ticks_of(holder) or 0,
        proof=proof_of(claimed),
        ttl=claimed.ttl,
        renew_every=claimed.renew_every,
        claimed_at=claimed_at,
        deadline=Deadline(claimed_at + claimed.ttl.total_seconds() - 1),
    )
    return BoardGuard(board, index, proof_of(claimed))


def heart(board: Board, worker: Registered, *, watches_processes: bool = True) -> Heartbeat:
    return Heartbeat(board, worker_id=worker.worker_id, watches_processes=watches_processes)


def told(board: Board, index: int = 0) -> Told:
    word = board.view(index).told
    assert word is not None
    return word


def slot_lease(claimed: Claimed) -> LeaseRow:
    return LeaseRow.objects.get(pk=claimed.proof.lease_id)


class Renewals:
    """The way to the authority, which may fail; the test's own connection goes on to work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.real = leases.renew_many
        monkeypatch.setattr(heartbeat_module, "connection", lambda: self)

    def close(self) -> None:
        """Close nothing: the connection of the test holds what it has made so far."""

    def become(self, renew_many: Callable[[Any], Any]) -> None:
        self._monkeypatch.setattr(leases, "renew_many", renew_many)

    def fail(self, error: BaseException) -> None:
        def renew_many(_renewals: object) -> Any:
            raise error

        self.become(renew_many)

    def mend(self) -> None:
        self.become(self.real)
