"""A deadline on a clock that cannot be stepped, measured from before the send (SPEC C1)."""

from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Self

from leaseq.errors import LeaseqBug, Misconfigured

NOTHING = timedelta()


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant, in boot seconds, from which the holder must act as one that lost its lease.

    Raises LeaseqBug for an instant that is not finite: such a deadline would never pass.
    """

    at: float

    def __post_init__(self) -> None:
        """Refuse an endless deadline: finite is what makes a lease a lease."""
        if not isfinite(self.at):
            raise LeaseqBug(f"a deadline must be a finite number of boot seconds, not {self.at}")

    @classmethod
    def measured(cls, *, asked_at: float, remaining: timedelta, margin: timedelta) -> Self:
        """Make the deadline that follows from one answer of the authority (SPEC C1).

        `asked_at` is the boot clock as read BEFORE the request was sent. The authority counted
        `remaining` later than that, so the deadline is never later than the true expiry, however
        long the answer took; `margin` covers two clocks that do not run equally fast.
        Raises Misconfigured for a negative margin.
        """
        if margin < NOTHING:
            raise Misconfigured(
                f"the safety margin is {margin} and would let a holder outlive its lease; "
                "set it to zero or more"
            )
        return cls(asked_at + remaining.total_seconds() - margin.total_seconds())

    def remaining(self, now: float) -> timedelta:
        """Say how much time is left at `now`; nothing once it has passed, never less."""
        return timedelta(seconds=max(0.0, self.at - now))

    def passed(self, now: float) -> bool:
        """Say whether the holder must stop; true at the very instant of the deadline."""
        return not now < self.at
