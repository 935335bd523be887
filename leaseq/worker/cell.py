"""One cell of the board: what one holder says it holds, and what its parent says of it."""

import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from leaseq.errors import LeaseqBug
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief, Proof
from leaseq.owner.renewer import silence_is_doubt_at
from leaseq.vocabulary import Certainty
from leaseq.worker.register import Register

REASON_BYTES = 32
# state, pid, start ticks; lease, attempt, epoch, fence; ttl, interval, claimed at, deadline.
HOLDER_HALF = struct.Struct("=qqq16s16sqqdddd")
# lease, attempt, epoch, fence; deadline, doubt at, certainty, cancel; reason, renewals.
PARENT_HALF = struct.Struct("=16s16sqqddqq32sq")
CELL_BYTES = Register.size(HOLDER_HALF) + Register.size(PARENT_HALF)

IDLE, HOLDING = 0, 1
EMPTY = (IDLE, 0, 0, bytes(16), bytes(16), 0, 0, 0.0, 0.0, 0.0, 0.0)
CERTAINTIES = (Certainty.CERTAIN, Certainty.UNCERTAIN, Certainty.LOST)


@dataclass(frozen=True, slots=True)
class Held:
    """What one pool process or thread says it holds; instants in boot seconds."""

    index: int
    pid: int
    start_ticks: int
    proof: Proof
    ttl: timedelta
    renew_every: timedelta
    claimed_at: float
    deadline: Deadline

    def first_belief(self) -> Belief:
        """Say what the claim alone lets the holder believe until the parent speaks."""
        return Belief(
            deadline=self.deadline,
            doubt_at=silence_is_doubt_at(self.claimed_at, self.renew_every),
            certainty=Certainty.CERTAIN,
        )


class Told(NamedTuple):
    """What the parent last said in a cell, and of which lease."""

    proof: Proof
    belief: Belief
    renewals: int


class CellView(NamedTuple):
    """Both halves of one cell; None where nothing is held, or nothing was ever said."""

    held: Held | None
    told: Told | None


class Cell:
    """The holder's half and the parent's half, each with its one writer.

    Every write raises LeaseqBug, with nothing changed, for values that do not fit.
    """

    __slots__ = ("index", "of_holder", "of_parent")

    def __init__(self, memory: memoryview, start: int, *, index: int) -> None:
        self.index = index
        self.of_holder = Register(memory, start, HOLDER_HALF)
        self.of_parent = Register(memory, start + Register.size(HOLDER_HALF), PARENT_HALF)

    def held(self) -> Held | None:
        """Read the holder's half. Raises LeaseqBug when it is damaged."""
        fields = self.of_holder.read()
        if fields is None or fields[0] != HOLDING:
            return None
        _, pid, start_ticks, lease, attempt, epoch, fence, ttl, every, claimed_at, until = fields
        return Held(
            index=self.index,
            pid=pid,
            start_ticks=start_ticks,
            proof=_proof(lease, attempt, epoch, fence),
            ttl=timedelta(seconds=ttl),
            renew_every=timedelta(seconds=every),
            claimed_at=claimed_at,
            deadline=Deadline(until),
        )

    def hold(self, held: Held) -> None:
        """Write the holder's half."""
        _write(
            self.of_holder,
            HOLDING,
            held.pid,
            held.start_ticks,
            *_packed(held.proof),
            held.ttl.total_seconds(),
            held.renew_every.total_seconds(),
            held.claimed_at,
            held.deadline.at,
        )

    def release(self) -> None:
        """Empty the holder's half."""
        _write(self.of_holder, *EMPTY)

    def told(self) -> Told | None:
        """Read the parent's half. Raises LeaseqBug when it is damaged."""
        fields = self.of_parent.read()
        if fields is None:
            return None
        lease, attempt, epoch, fence, until, doubt_at, certainty, cancel, reason, count = fields
        belief = Belief(
            deadline=Deadline(until),
            doubt_at=doubt_at,
            certainty=CERTAINTIES[certainty],
            cancel_asked=bool(cancel),
            reason=reason.rstrip(b"\0").decode("ascii"),
        )
        return Told(_proof(lease, attempt, epoch, fence), belief, count)

    def tell(self, told: Told) -> None:
        """Write the parent's half."""
        belief = told.belief
        reason = str(belief.reason)
        if not reason.isascii() or len(reason) > REASON_BYTES:
            raise LeaseqBug(f"a reason is at most {REASON_BYTES} ASCII characters, not {reason!r}")
        _write(
            self.of_parent,
            *_packed(told.proof),
            belief.deadline.at,
            belief.doubt_at,
            CERTAINTIES.index(belief.certainty),
            int(belief.cancel_asked),
            reason.encode(),
            told.renewals,
        )


def _write(register: Register, *fields: Any) -> None:
    try:
        register.write(*fields)
    except struct.error as error:
        raise LeaseqBug(f"the board cannot hold {fields}: {error}") from error


def _packed(proof: Proof) -> tuple[bytes, bytes, int, int]:
    return proof.lease_id.bytes, proof.attempt_id.bytes, proof.fence_epoch, proof.fence


def _proof(lease: bytes, attempt: bytes, epoch: int, fence: int) -> Proof:
    return Proof(UUID(bytes=lease), UUID(bytes=attempt), epoch, fence)
