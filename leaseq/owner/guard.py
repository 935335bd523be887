"""guard() and lost: what a holder may still do with its lease; no I/O (SPEC C3, C4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from leaseq.errors import CancelAsked, OwnershipLost, OwnershipUncertain
from leaseq.owner.deadline import Deadline
from leaseq.vocabulary import Certainty, HolderReason


class Proof(NamedTuple):
    """What an owner proves itself with: lease, attempt and fencing token (SPEC N)."""

    lease_id: UUID
    attempt_id: UUID
    fence_epoch: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What the holder was last told, and how that word ages when nothing new is heard.

    `certainty` holds until `doubt_at` (boot seconds), when an answer is overdue, and turns into
    uncertain there, and into lost at the deadline. `reason` is a reason code of at most 32 ASCII
    characters: why the lease is lost, in doubt or no longer extended; empty when there is none.
    """

    deadline: Deadline
    doubt_at: float
    certainty: Certainty
    cancel_asked: bool = False
    reason: str = ""

    def certainty_at(self, now: float) -> Certainty:
        """Judge the word at `now`: it only ever gets worse with time (SPEC C3)."""
        if self.certainty is Certainty.LOST or self.deadline.passed(now):
            return Certainty.LOST
        if self.certainty is Certainty.UNCERTAIN or not now < self.doubt_at:
            return Certainty.UNCERTAIN
        return Certainty.CERTAIN

    def reason_at(self, now: float) -> str:
        """Name what makes the lease less than certain at `now`; else the reason as told."""
        if self.reason:
            return self.reason
        match self.certainty_at(now):
            case Certainty.LOST:
                return HolderReason.DEADLINE_PASSED
            case Certainty.UNCERTAIN:
                return HolderReason.NO_ANSWER
            case Certainty.CERTAIN:
                return ""


class Guard:
    """Judges one lease for its holder, and remembers for ever that it was lost or cancelled.

    Read `now` BEFORE the call: the belief is read after it, so a holder that is paused between
    the two never takes an old word for a loss.
    """

    __slots__ = ("_cancel_asked", "_lost_because", "_proof", "_read_belief")

    def __init__(self, proof: Proof, read_belief: Callable[[], Belief]) -> None:
        self._proof = proof
        self._read_belief = read_belief
        self._lost_because: str | None = None
        self._cancel_asked = False

    def certainty(self, now: float) -> Certainty:
        """Say what the holder may believe at `now` (boot seconds); a loss is never revived."""
        return self._judge(now)[0]

    def cancel_asked(self, now: float) -> bool:
        """Say whether a cancellation was ever heard of, by `now`."""
        self._judge(now)
        return self._cancel_asked

    def check(self, now: float) -> None:
        """Return when the lease is certainly valid at `now` (boot seconds), raise otherwise.

        Raises OwnershipLost when the lease is gone (a cancellation does not hide that),
        CancelAsked when a cancellation was asked for, OwnershipUncertain when an answer of the
        authority is overdue (SPEC C3, C4). Each carries lease_id, attempt_id and reason.
        """
        certainty, reason = self._judge(now)
        if certainty is Certainty.CERTAIN and not self._cancel_asked:
            return
        ids = {
            "lease_id": self._proof.lease_id,
            "attempt_id": self._proof.attempt_id,
            "reason": reason,
        }
        if certainty is Certainty.LOST:
            raise OwnershipLost("the lease is lost: stop, nothing you write will count", **ids)
        if self._cancel_asked:
            raise CancelAsked("a cancellation of this job was asked for: stop", **ids)
        raise OwnershipUncertain("ownership is not known: start nothing irreversible", **ids)

    def _judge(self, now: float) -> tuple[Certainty, str]:
        """Judge and latch; both latches only ever close, so threads need no lock here."""
        lost_because = self._lost_because
        if lost_because is not None:
            return Certainty.LOST, lost_because
        belief = self._read_belief()
        if belief.cancel_asked:
            self._cancel_asked = True
        certainty = belief.certainty_at(now)
        if certainty is Certainty.CERTAIN:
            return certainty, belief.reason
        reason = belief.reason_at(now)
        if certainty is Certainty.LOST:
            self._lost_because = reason
        return certainty, reason
