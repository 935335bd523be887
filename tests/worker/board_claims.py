"""A claim on a board and a word of the parent about it, for the tests of the board."""

import os
from datetime import timedelta
from uuid import UUID

from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief, Proof
from leaseq.vocabulary import Certainty
from leaseq.worker.board import Board

PROOF = Proof(UUID(int=1), UUID(int=2), 1, 7)
LATER = Proof(UUID(int=3), UUID(int=4), 1, 8)


def hold(board: Board, index: int = 0, proof: Proof = PROOF, *, lasts: float = 30.0) -> None:
    now = boot_seconds()
    board.hold(
        index,
        pid=os.getpid(),
        start_ticks=5,
        proof=proof,
        ttl=timedelta(seconds=30),
        renew_every=timedelta(seconds=10),
        claimed_at=now,
        deadline=Deadline(now + lasts),
    )


def word(*, lasts: float = 30.0, certainty: Certainty = Certainty.CERTAIN) -> Belief:
    now = boot_seconds()
    return Belief(deadline=Deadline(now + lasts), doubt_at=now + 20, certainty=certainty)
