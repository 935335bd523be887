"""Whole runs of a renewal plan against an authority that is slow, away or contrary (SPEC C)."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseq.owner.deadline import NOTHING, Deadline
from leaseq.owner.renewer import Cadence, RenewalPlan
from leaseq.vocabulary import Certainty, RenewalRefusal

STEP = 0.05


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


@dataclass
class Run:
    """A holder's loop in virtual time: tick, ask when due, hear what the authority says."""

    plan: RenewalPlan
    latency: float
    away: tuple[float, float] = (0.0, 0.0)
    now: float = 0.0
    true_expiry: float = 0.0
    sent_at: list[float] = field(default_factory=list)
    doubts: int = 0

    def until(self, end: float) -> None:
        while self.now < end:
            self.now += STEP
            if self.plan.due(self.now):
                self._renew()
            certainty = self.plan.certainty(self.now)
            assert certainty is Certainty.LOST or self.now < self.true_expiry
            self.doubts += certainty is Certainty.UNCERTAIN

    def _renew(self) -> None:
        asked_at = self.now
        self.sent_at.append(asked_at)
        self.plan = self.plan.after_sent(asked_at)
        self.now += self.latency
        if self.away[0] <= asked_at < self.away[1]:
            self.plan = self.plan.after_failure(self.now, jitter=0.5)
            return
        # The authority reads its clock somewhere between the question and the answer.
        ttl = self.plan.cadence.ttl
        self.true_expiry = asked_at + self.latency / 2 + ttl.total_seconds()
        self.plan = self.plan.after_answer(self.now, remaining=ttl, jitter=0.5)


def begun(ttl: float, renew_every: float) -> RenewalPlan:
    cadence = Cadence(
        ttl=seconds(ttl), renew_every=seconds(renew_every), latency=seconds(1), margin=NOTHING
    )
    return RenewalPlan.begin(cadence, claimed_at=0.0, deadline=Deadline(ttl), jitter=0.5)


def test_a_ttl_of_six_seconds_and_slow_renewals_lose_nothing_in_a_minute() -> None:
    run = Run(begun(6, 2), latency=0.2, true_expiry=6.0)
    run.until(60.0)
    assert not run.plan.lost
    assert run.doubts == 0
    assert 28 <= run.plan.renewals <= 36


@pytest.mark.parametrize("start", [0.0, 9.0, 9.6, 12.0, 18.0])
def test_an_authority_away_for_eight_of_thirty_seconds_costs_nothing(start: float) -> None:
    run = Run(begun(30, 10), latency=0.1, away=(start, start + 8), true_expiry=30.0)
    run.until(90.0)
    assert not run.plan.lost
    assert run.plan.certainty(run.now) is Certainty.CERTAIN


def test_an_authority_away_for_forty_seconds_ends_the_lease_and_the_asking() -> None:
    run = Run(begun(30, 10), latency=0.1, away=(0.0, 40.0), true_expiry=30.0)
    run.until(90.0)
    assert run.plan.certainty(run.now) is Certainty.LOST
    assert run.doubts > 0
    assert 3 <= len(run.sent_at) <= 12
    assert max(run.sent_at) < 30.0
    assert run.plan.renewals == 0


EVENTS = st.sampled_from(["tick", "send", "answer", "failure", "refusal"])


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            EVENTS,
            st.floats(min_value=0.0, max_value=12.0),
            st.floats(min_value=0.0, max_value=40.0),
            st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
            st.sampled_from(RenewalRefusal),
        ),
        max_size=40,
    )
)
def test_no_order_of_events_revives_a_lease_or_outlives_the_authority(
    steps: list[tuple[str, float, float, float, RenewalRefusal]],
) -> None:
    plan, now = begun(30, 10), 0.0
    allowed_until, was_lost = 30.0, False
    for event, wait, remaining, jitter, reason in steps:
        now += wait
        if event == "send" and plan.asked_at is None:
            plan = plan.after_sent(now)
        elif event == "answer" and plan.asked_at is not None:
            allowed_until = plan.asked_at + min(remaining, 30.0)
            plan = plan.after_answer(now, remaining=seconds(remaining), jitter=jitter)
        elif event == "refusal" and plan.asked_at is not None:
            plan = plan.after_refusal(now, reason=reason, jitter=jitter)
        elif event == "failure":
            plan = plan.after_failure(now, jitter=jitter)
        certainty = plan.certainty(now)
        assert not was_lost or certainty is Certainty.LOST
        assert certainty is Certainty.LOST or now < allowed_until + 1e-3
        assert not (plan.due(now) and certainty is Certainty.LOST)
        assert not (plan.doubtful and certainty is Certainty.CERTAIN)
        was_lost = certainty is Certainty.LOST
