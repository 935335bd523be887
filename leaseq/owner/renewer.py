"""When to renew, when to stop trying, and what the holder may believe meanwhile (SPEC C2, C3).

A plan is a value: each verb returns the next one, and the transport stays outside. The order of
one renewal is: `due`, then `after_sent` (before the first byte leaves), then exactly one of
`after_answer`, `after_refusal`, `after_failure`. After each, `belief` is what to publish.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Self, assert_never

from leaseq.errors import LeaseqBug, Misconfigured
from leaseq.owner.deadline import NOTHING, Deadline
from leaseq.owner.guard import Belief
from leaseq.vocabulary import Certainty, HolderReason, RenewalRefusal

TTL_MIN = timedelta(seconds=1)
# Renewals come up to this share of the interval early, never late, so that many holders of one
# start do not stay in step.
SPREAD = 0.1
# The shortest pause between two tries, as a share of the interval.
PAUSE_MIN_SHARE = 1 / 8
# How long an answer may take before it is overdue, as a share of the interval.
LATENCY_SHARE = 0.5
MARGIN_SHARE_MAX = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The rhythm of one lease. `latency` is how long an answer may take before it is overdue."""

    ttl: timedelta
    renew_every: timedelta
    latency: timedelta
    margin: timedelta

    @classmethod
    def of(cls, ttl: timedelta, renew_every: timedelta, *, margin_max: timedelta) -> Self:
        """Return the rhythm of a policy; the margin is a tenth of a short ttl at most."""
        return cls(
            ttl=ttl,
            renew_every=renew_every,
            latency=renew_every * LATENCY_SHARE,
            margin=min(margin_max, ttl * MARGIN_SHARE_MAX),
        )

    @property
    def pause_min_seconds(self) -> float:
        """Say the shortest pause between two tries, before jitter."""
        return self.renew_every.total_seconds() * PAUSE_MIN_SHARE


class RefusalMeaning(StrEnum):
    """What a refused renewal tells the holder about the lease it still has."""

    GONE = "gone"
    UNSURE = "unsure"
    CANCEL = "cancel"
    WITHHELD = "withheld"
    SPENT = "spent"


def check_cadence(
    ttl: timedelta, renew_every: timedelta, latency: timedelta, *, margin: timedelta = NOTHING
) -> None:
    """Refuse a rhythm in which one lost or slow renewal would end a lease (SPEC C2, case C1).

    Raises Misconfigured, naming the mend, unless two whole intervals and one answer fit into
    what the safety margin leaves of the ttl.
    """
    if ttl < TTL_MIN:
        raise Misconfigured(
            f"a lease ttl of {ttl.total_seconds():g} s is too short to be renewed reliably; "
            f"set it to {TTL_MIN.total_seconds():g} s or more"
        )
    if renew_every <= NOTHING or latency < NOTHING or margin < NOTHING:
        raise Misconfigured(
            f"renewing every {renew_every.total_seconds():g} s with a latency of "
            f"{latency.total_seconds():g} s and a margin of {margin.total_seconds():g} s cannot "
            "work; the interval must be above zero, the others zero or more"
        )
    if renew_every * 2 >= ttl:
        raise Misconfigured(
            f"renewing every {renew_every.total_seconds():g} s is too seldom for a ttl of "
            f"{ttl.total_seconds():g} s: one lost renewal would end the lease; renew more often "
            f"than every {(ttl / 2).total_seconds():g} s (a third of the ttl is usual), or "
            "lengthen the ttl"
        )
    needed = renew_every * 2 + latency + margin
    if needed > ttl:
        raise Misconfigured(
            f"a ttl of {ttl.total_seconds():g} s leaves no time for a second renewal: two "
            f"intervals of {renew_every.total_seconds():g} s, an answer that may take "
            f"{latency.total_seconds():g} s and a margin of {margin.total_seconds():g} s need "
            f"{needed.total_seconds():g} s; renew more often, lengthen the ttl, or shorten the "
            "timeout or the margin"
        )


def silence_is_doubt_at(confirmed_at: float, renew_every: timedelta) -> float:
    """Say when a holder that heard nothing since `confirmed_at` must doubt: two intervals on."""
    return confirmed_at + 2 * renew_every.total_seconds()


def meaning_of(reason: RenewalRefusal) -> RefusalMeaning:
    """Say what a refusal means for the holder; every reason has a meaning (SPEC B4, C3).

    Ownership is judged first by the authority, so a refusal by a bound or a policy confirms the
    lease until its old expiry.
    """
    match reason:
        case (
            RenewalRefusal.UNKNOWN_LEASE
            | RenewalRefusal.STALE_OWNER
            | RenewalRefusal.WRONG_ATTEMPT
            | RenewalRefusal.LEASE_ENDED
            | RenewalRefusal.LEASE_EXPIRED
            | RenewalRefusal.ATTEMPT_CLOSED
            | RenewalRefusal.JOB_TERMINAL
        ):
            return RefusalMeaning.GONE
        case RenewalRefusal.VERSION_CHANGED | RenewalRefusal.CLOCK_STEPPED_BACK:
            return RefusalMeaning.UNSURE
        case RenewalRefusal.CANCEL_ASKED:
            return RefusalMeaning.CANCEL
        case (
            RenewalRefusal.POLICY_CLOSED
            | RenewalRefusal.NO_LIVE_WORKER
            | RenewalRefusal.NO_PROGRESS
        ):
            return RefusalMeaning.WITHHELD
        case (
            RenewalRefusal.LEASE_LIFE_SPENT
            | RenewalRefusal.QUEUE_AGE_SPENT
            | RenewalRefusal.RESERVED_TIME_SPENT
            | RenewalRefusal.RENEWAL_BUDGET_SPENT
            | RenewalRefusal.RUN_LIMIT_SPENT
            | RenewalRefusal.PROVIDER_WAIT_SPENT
        ):
            return RefusalMeaning.SPENT
        case _:
            assert_never(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalPlan:
    """The renewals of one lease as its holder plans them; a lost plan stays lost (SPEC C3).

    Instants are boot seconds. `asked_at` is set while a renewal is out; `confirmed_at` is when
    the last one that was answered had been sent. `due_at` is None when asking again is of no use.
    Raises LeaseqBug when verbs come in an order that cannot be.
    """

    cadence: Cadence
    deadline: Deadline
    confirmed_at: float
    due_at: float | None
    asked_at: float | None = None
    failures: int = 0
    renewals: int = 0
    doubtful: bool = False
    cancel_asked: bool = False
    lost: bool = False
    reason: str = ""

    @classmethod
    def begin(
        cls, cadence: Cadence, *, claimed_at: float, deadline: Deadline, jitter: float
    ) -> Self:
        """Start from the claim, which counts as the first confirmation of the lease."""
        pause = _renewal_pause(cadence, confirmed_at=claimed_at, deadline=deadline, jitter=jitter)
        return cls(
            cadence=cadence, deadline=deadline, confirmed_at=claimed_at, due_at=claimed_at + pause
        )

    @property
    def doubt_at(self) -> float:
        """Say from when on the authority's silence is doubt (SPEC C3).

        With a renewal out, once its answer is overdue; in any case after two whole intervals
        without an answer, so that a holder whose renewals stopped for any reason is told as well.
        Sending a question never ends a doubt, only an answer does.
        """
        if self.due_at is None and self.asked_at is None:
            return self.deadline.at
        silent_at = silence_is_doubt_at(self.confirmed_at, self.cadence.renew_every)
        if self.asked_at is None:
            return silent_at
        return min(silent_at, self.asked_at + self.cadence.latency.total_seconds())

    def belief(self, now: float) -> Belief:
        """Say what the holder may believe at `now`, and how that ages."""
        if self.lost:
            certainty = Certainty.LOST
        elif self.doubtful:
            certainty = Certainty.UNCERTAIN
        else:
            certainty = Certainty.CERTAIN
        told = Belief(
            deadline=self.deadline,
            doubt_at=self.doubt_at,
            certainty=certainty,
            cancel_asked=self.cancel_asked,
            reason=self.reason,
        )
        return replace(told, certainty=told.certainty_at(now), reason=told.reason_at(now))

    def certainty(self, now: float) -> Certainty:
        """Judge the lease at `now`."""
        return self.belief(now).certainty

    def due(self, now: float) -> bool:
        """Say whether to send a renewal now: never while one is out, nor once it is of no use."""
        if self._gone(now) or self.asked_at is not None or self.due_at is None:
            return False
        return now >= self.due_at

    def after_sent(self, now: float) -> Self:
        """Note that a renewal is about to leave; `now` must be read before it does (SPEC C1)."""
        if self.asked_at is not None:
            raise LeaseqBug("a renewal is already out; its answer or failure comes first")
        if self._gone(now):
            return self._pass_away()
        return replace(self, asked_at=now)

    def after_answer(self, now: float, *, remaining: timedelta, jitter: float) -> Self:
        """Take the authority's word that the lease lives for `remaining` (SPEC C1, C3).

        Counted from when the question was sent. More than the ttl is cut to the ttl: an
        authority whose clock was stepped back cannot lengthen a lease here. An answer that comes
        after the old deadline finds the lease lost: the holder had to stop by then.
        """
        asked_at = self._answered()
        if self._gone(now):
            return self._pass_away()
        deadline = Deadline.measured(
            asked_at=asked_at,
            remaining=min(remaining, self.cadence.ttl),
            margin=self.cadence.margin,
        )
        confirmed = self._confirm(asked_at, deadline=deadline, jitter=jitter)
        return replace(confirmed, renewals=self.renewals + 1, reason="")

    def after_failure(self, now: float, *, jitter: float) -> Self:
        """Note an error, or that no answer came: ownership is uncertain, try again (SPEC C2, C3).

        The pause doubles from one failure to the next, never passes the interval nor half of the
        time left, and nothing is tried after the deadline. Allowed also when nothing was sent.
        """
        return self._retry(now, reason=HolderReason.NO_ANSWER, jitter=jitter)

    def after_refusal(self, now: float, *, reason: RenewalRefusal, jitter: float) -> Self:
        """Take a refusal: lost, in doubt, cancelled, or kept until the deadline and no longer."""
        asked_at = self._answered()
        if self._gone(now):
            return self._pass_away()
        kept = self._confirm(asked_at, deadline=self.deadline, jitter=jitter)
        meaning = meaning_of(reason)
        match meaning:
            case RefusalMeaning.GONE:
                return self._lose(reason)
            case RefusalMeaning.UNSURE:
                return self._retry(now, reason=reason, jitter=jitter)
            case RefusalMeaning.CANCEL:
                return replace(kept, reason=reason).after_cancel()
            case RefusalMeaning.WITHHELD:
                return replace(kept, reason=reason)
            case RefusalMeaning.SPENT:
                return replace(kept, reason=reason, due_at=None)
            case _:
                assert_never(meaning)

    def after_cancel(self) -> Self:
        """Note that a cancellation was asked for; the lease itself is followed on (SPEC B4a)."""
        return replace(self, cancel_asked=True)

    def _gone(self, now: float) -> bool:
        return self.lost or self.deadline.passed(now)

    def _lose(self, reason: str) -> Self:
        return replace(self, lost=True, asked_at=None, due_at=None, reason=reason)

    def _pass_away(self) -> Self:
        """Lose by the clock; what was wrong before it (or the first loss) says more than that."""
        return self._lose(self.reason or HolderReason.DEADLINE_PASSED)

    def _answered(self) -> float:
        if self.asked_at is None:
            if self.lost:
                return self.confirmed_at
            raise LeaseqBug("an answer came to a renewal that was not sent")
        return self.asked_at

    def _confirm(self, asked_at: float, *, deadline: Deadline, jitter: float) -> Self:
        pause = _renewal_pause(
            self.cadence, confirmed_at=asked_at, deadline=deadline, jitter=jitter
        )
        return replace(
            self,
            deadline=deadline,
            confirmed_at=asked_at,
            due_at=asked_at + pause,
            asked_at=None,
            failures=0,
            doubtful=False,
        )

    def _retry(self, now: float, *, reason: str, jitter: float) -> Self:
        if self._gone(now):
            return self._pass_away()
        failures = self.failures + 1
        pause = _retry_pause(
            self.cadence, failures=failures, left=self.deadline.at - now, jitter=jitter
        )
        return replace(
            self,
            asked_at=None,
            failures=failures,
            doubtful=True,
            reason=reason,
            due_at=now + pause,
        )


def _renewal_pause(
    cadence: Cadence, *, confirmed_at: float, deadline: Deadline, jitter: float
) -> float:
    """Wait an interval, or half of what is left where a bound cut the lease short."""
    _demand_jitter(jitter)
    half = (deadline.at - confirmed_at) / 2
    pause = max(min(cadence.renew_every.total_seconds(), half), cadence.pause_min_seconds)
    return pause * (1 - SPREAD * jitter)


def _retry_pause(cadence: Cadence, *, failures: int, left: float, jitter: float) -> float:
    """Double the pause with each failure; between half of it and all of it by chance."""
    _demand_jitter(jitter)
    doubled = cadence.pause_min_seconds * 2.0 ** min(failures - 1, 30)
    bounded = min(doubled, cadence.renew_every.total_seconds(), left / 2)
    return max(bounded, cadence.pause_min_seconds) * (0.5 + 0.5 * jitter)


def _demand_jitter(jitter: float) -> None:
    if not 0 <= jitter < 1:
        raise LeaseqBug(f"jitter must lie in [0, 1), not {jitter}")
