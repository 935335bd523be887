"""When to renew, when to stop, and what to believe meanwhile (SPEC C1-C3, case C1, case C4)."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from leaseq.errors import LeaseqBug, Misconfigured
from leaseq.owner.deadline import NOTHING, Deadline
from leaseq.owner.renewer import (
    Cadence,
    RefusalMeaning,
    RenewalPlan,
    check_cadence,
    meaning_of,
)
from leaseq.vocabulary import Certainty, RenewalRefusal

CERTAIN, UNCERTAIN, LOST = Certainty


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


CADENCE = Cadence(ttl=seconds(30), renew_every=seconds(10), latency=seconds(1), margin=NOTHING)


@pytest.fixture
def plan() -> RenewalPlan:
    """A lease claimed at 0 that ends at 30; renewals every 10."""
    return RenewalPlan.begin(CADENCE, claimed_at=0.0, deadline=Deadline(30.0), jitter=0.0)


@pytest.fixture
def sent(plan: RenewalPlan) -> RenewalPlan:
    """The same, with a renewal out since 10."""
    return plan.after_sent(10.0)


# -- cadence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "renew_every", "latency", "margin"),
    [
        pytest.param(30, 10, 1, 1, id="the defaults"),
        pytest.param(6, 2, 0.2, 0, id="case C1"),
        pytest.param(1, 0.33, 0.1, 0.1, id="the shortest ttl"),
        pytest.param(10, 4, 1, 1, id="all of the ttl is used"),
        pytest.param(10, 4.9, 0, 0, id="just below half"),
    ],
)
def test_a_cadence_with_room_for_a_second_renewal_is_accepted(
    ttl: float, renew_every: float, latency: float, margin: float
) -> None:
    check_cadence(seconds(ttl), seconds(renew_every), seconds(latency), margin=seconds(margin))


@pytest.mark.parametrize(
    ("ttl", "renew_every", "latency", "margin", "mend"),
    [
        pytest.param(6, 3, 0.2, 0, "renew more often than every 3 s", id="half the ttl"),
        pytest.param(6, 6, 0.2, 0, "renew more often than every 3 s", id="the whole ttl"),
        pytest.param(6, 60, 0.2, 0, "renew more often than every 3 s", id="more than the ttl"),
        pytest.param(0.99, 0.1, 0, 0, "set it to 1 s or more", id="ttl below a second"),
        pytest.param(0, 0, 0, 0, "set it to 1 s or more", id="no ttl"),
        pytest.param(-5, 1, 0, 0, "set it to 1 s or more", id="negative ttl"),
        pytest.param(6, 0, 0, 0, "above zero", id="no interval"),
        pytest.param(6, -1, 0, 0, "above zero", id="negative interval"),
        pytest.param(6, 1, -1, 0, "zero or more", id="negative latency"),
        pytest.param(6, 1, 0, -1, "zero or more", id="negative margin"),
        pytest.param(10, 4, 2, 1, "shorten the timeout", id="a slow answer leaves no time"),
        pytest.param(10, 4, 0, 3, "shorten the timeout or the margin", id="margin too wide"),
    ],
)
def test_a_cadence_that_one_lost_renewal_would_end_is_refused_with_the_mend(
    ttl: float, renew_every: float, latency: float, margin: float, mend: str
) -> None:
    with pytest.raises(Misconfigured, match=mend):
        check_cadence(seconds(ttl), seconds(renew_every), seconds(latency), margin=seconds(margin))


# -- when to send ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "due"),
    [(9.99, False), (10.0, True), (29.99, True), (30.0, False), (1e6, False)],
)
def test_a_renewal_is_due_after_the_interval_and_never_after_the_deadline(
    plan: RenewalPlan, now: float, due: bool
) -> None:
    assert plan.due(now) is due


def test_only_one_renewal_is_out_at_a_time(sent: RenewalPlan) -> None:
    assert not sent.due(20.0)
    with pytest.raises(LeaseqBug, match="already out"):
        sent.after_sent(20.0)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_jitter_makes_a_renewal_early_never_late(jitter: float) -> None:
    plan = RenewalPlan.begin(CADENCE, claimed_at=0.0, deadline=Deadline(30.0), jitter=jitter)
    assert plan.due_at is not None
    assert 9.0 < plan.due_at <= 10.0
    assert plan.due_at == pytest.approx(10 - jitter)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, float("nan")])
def test_jitter_outside_its_range_is_refused(jitter: float, sent: RenewalPlan) -> None:
    with pytest.raises(LeaseqBug, match="jitter"):
        RenewalPlan.begin(CADENCE, claimed_at=0.0, deadline=Deadline(30.0), jitter=jitter)
    with pytest.raises(LeaseqBug, match="jitter"):
        sent.after_failure(11.0, jitter=jitter)


def test_a_lease_cut_short_by_a_bound_is_asked_about_earlier_but_not_in_a_rush(
    sent: RenewalPlan,
) -> None:
    short = sent.after_answer(10.1, remaining=seconds(8), jitter=0.0)
    assert short.due_at == 14.0
    shorter = sent.after_answer(10.1, remaining=seconds(0.5), jitter=0.0)
    assert shorter.due_at == 11.25
    assert not shorter.due(11.25)


# -- answers ---------------------------------------------------------------------------------


def test_an_answer_counts_from_when_the_question_was_sent(sent: RenewalPlan) -> None:
    renewed = sent.after_answer(25.0, remaining=seconds(30), jitter=0.0)
    assert renewed.deadline == Deadline(40.0)
    assert renewed.due_at == 20.0
    assert (renewed.renewals, renewed.asked_at, renewed.lost) == (1, None, False)
    assert renewed.certainty(25.0) is CERTAIN


def test_the_margin_is_taken_off_the_deadline() -> None:
    cadence = Cadence(
        ttl=seconds(30), renew_every=seconds(10), latency=seconds(1), margin=seconds(2)
    )
    plan = RenewalPlan.begin(cadence, claimed_at=0.0, deadline=Deadline(28.0), jitter=0.0)
    renewed = plan.after_sent(10.0).after_answer(10.1, remaining=seconds(30), jitter=0.0)
    assert renewed.deadline == Deadline(38.0)


def test_an_authority_that_was_stepped_back_cannot_lengthen_a_lease(sent: RenewalPlan) -> None:
    renewed = sent.after_answer(10.1, remaining=timedelta(hours=2), jitter=0.0)
    assert renewed.deadline == Deadline(40.0)


def test_an_answer_after_the_old_deadline_does_not_revive_the_lease(sent: RenewalPlan) -> None:
    late = sent.after_answer(30.0, remaining=seconds(30), jitter=0.0)
    assert late.lost
    assert late.deadline == Deadline(30.0)
    assert late.renewals == 0
    assert late.certainty(0.0) is LOST
    assert late.belief(0.0).reason == "deadline_passed"


def test_an_answer_to_nothing_is_a_bug(plan: RenewalPlan) -> None:
    with pytest.raises(LeaseqBug, match="was not sent"):
        plan.after_answer(1.0, remaining=seconds(30), jitter=0.0)
    with pytest.raises(LeaseqBug, match="was not sent"):
        plan.after_refusal(1.0, reason=RenewalRefusal.NO_PROGRESS, jitter=0.0)


def test_an_answer_that_leaves_no_time_is_a_loss(sent: RenewalPlan) -> None:
    assert sent.after_answer(11.0, remaining=NOTHING, jitter=0.0).certainty(11.0) is LOST


# -- doubt -----------------------------------------------------------------------------------


def test_an_overdue_answer_is_doubt_without_anybody_doing_anything(sent: RenewalPlan) -> None:
    told = sent.belief(10.0)
    assert told.certainty_at(10.99) is CERTAIN
    assert told.certainty_at(11.0) is UNCERTAIN
    assert told.certainty_at(30.0) is LOST


def test_two_silent_intervals_are_doubt(plan: RenewalPlan) -> None:
    told = plan.belief(0.0)
    assert told.certainty_at(19.99) is CERTAIN
    assert told.certainty_at(20.0) is UNCERTAIN


def test_asking_again_does_not_end_a_doubt(plan: RenewalPlan) -> None:
    assert plan.certainty(25.0) is UNCERTAIN
    assert plan.after_sent(25.0).certainty(25.0) is UNCERTAIN


def test_a_failure_is_doubt_until_the_next_answer(sent: RenewalPlan) -> None:
    failed = sent.after_failure(10.5, jitter=0.0)
    assert failed.certainty(10.5) is UNCERTAIN
    assert failed.belief(10.5).reason == "no_answer"
    assert failed.deadline == sent.deadline
    again = failed.after_sent(12.0)
    assert again.certainty(12.0) is UNCERTAIN
    renewed = again.after_answer(12.1, remaining=seconds(30), jitter=0.0)
    assert renewed.certainty(12.1) is CERTAIN
    assert (renewed.failures, renewed.reason) == (0, "")


def test_a_failure_to_send_at_all_is_doubt_too(plan: RenewalPlan) -> None:
    assert plan.after_failure(10.0, jitter=0.0).certainty(10.0) is UNCERTAIN


def test_pauses_double_within_bounds_and_end_with_the_lease() -> None:
    cadence = Cadence(ttl=seconds(90), renew_every=seconds(8), latency=seconds(1), margin=NOTHING)
    plan = RenewalPlan.begin(cadence, claimed_at=0.0, deadline=Deadline(90.0), jitter=0.0)
    pauses = []
    now = 8.0
    while plan.due(now):
        plan = plan.after_sent(now).after_failure(now, jitter=0.999_999)
        assert plan.due_at is not None
        pauses.append(plan.due_at - now)
        now = plan.due_at
    assert pauses[:7] == pytest.approx([1, 2, 4, 8, 8, 8, 8], abs=1e-4)
    assert all(0.5 <= pause <= 8 for pause in pauses)
    assert now >= 90.0
    assert len(pauses) < 25


@pytest.mark.parametrize(("jitter", "pause"), [(0.0, 0.625), (0.5, 0.9375)])
def test_a_pause_is_at_least_half_of_itself(sent: RenewalPlan, jitter: float, pause: float) -> None:
    failed = sent.after_failure(11.0, jitter=jitter)
    assert failed.due_at == pytest.approx(11.0 + pause)


def test_pauses_shorten_towards_the_deadline(sent: RenewalPlan) -> None:
    plan = sent
    for _ in range(6):
        plan = plan.after_failure(11.0, jitter=0.0)
    assert plan.due_at == pytest.approx(11.0 + 9.5 / 2)
    assert plan.after_failure(26.0, jitter=0.0).due_at == pytest.approx(26.0 + 2.0 / 2)


def test_failures_without_end_do_not_overflow(sent: RenewalPlan) -> None:
    plan = sent
    for _ in range(5000):
        plan = plan.after_failure(10.0, jitter=0.0)
    assert plan.due_at is not None
    assert plan.due_at <= 20.0


# -- refusals --------------------------------------------------------------------------------

MEANINGS = {
    RefusalMeaning.GONE: (LOST, False, False),
    RefusalMeaning.UNSURE: (UNCERTAIN, True, False),
    RefusalMeaning.CANCEL: (CERTAIN, True, True),
    RefusalMeaning.WITHHELD: (CERTAIN, True, False),
    RefusalMeaning.SPENT: (CERTAIN, False, False),
}
REFUSALS = {
    RenewalRefusal.UNKNOWN_LEASE: RefusalMeaning.GONE,
    RenewalRefusal.STALE_OWNER: RefusalMeaning.GONE,
    RenewalRefusal.WRONG_ATTEMPT: RefusalMeaning.GONE,
    RenewalRefusal.VERSION_CHANGED: RefusalMeaning.UNSURE,
    RenewalRefusal.LEASE_ENDED: RefusalMeaning.GONE,
    RenewalRefusal.LEASE_EXPIRED: RefusalMeaning.GONE,
    RenewalRefusal.CLOCK_STEPPED_BACK: RefusalMeaning.UNSURE,
    RenewalRefusal.ATTEMPT_CLOSED: RefusalMeaning.GONE,
    RenewalRefusal.JOB_TERMINAL: RefusalMeaning.GONE,
    RenewalRefusal.CANCEL_ASKED: RefusalMeaning.CANCEL,
    RenewalRefusal.POLICY_CLOSED: RefusalMeaning.WITHHELD,
    RenewalRefusal.LEASE_LIFE_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.QUEUE_AGE_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.RESERVED_TIME_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.RENEWAL_BUDGET_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.RUN_LIMIT_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.PROVIDER_WAIT_SPENT: RefusalMeaning.SPENT,
    RenewalRefusal.NO_LIVE_WORKER: RefusalMeaning.WITHHELD,
    RenewalRefusal.NO_PROGRESS: RefusalMeaning.WITHHELD,
}


def test_every_refusal_has_a_row() -> None:
    assert set(REFUSALS) == set(RenewalRefusal)
    assert set(MEANINGS) == set(RefusalMeaning)


@pytest.mark.parametrize("reason", RenewalRefusal)
def test_a_refusal_says_what_is_left_of_the_lease(
    reason: RenewalRefusal, sent: RenewalPlan
) -> None:
    assert meaning_of(reason) is REFUSALS[reason]
    certainty, asked_again, cancelled = MEANINGS[REFUSALS[reason]]
    refused = sent.after_refusal(10.5, reason=reason, jitter=0.0)
    assert refused.certainty(10.5) is certainty
    assert refused.due(29.0) is asked_again
    assert refused.cancel_asked is cancelled
    assert refused.belief(10.5).reason == reason
    assert refused.deadline == sent.deadline
    assert refused.renewals == 0
    assert refused.certainty(30.0) is LOST


def test_spent_bounds_leave_the_lease_certain_until_its_deadline(sent: RenewalPlan) -> None:
    spent = sent.after_refusal(10.5, reason=RenewalRefusal.RUN_LIMIT_SPENT, jitter=0.0)
    assert spent.belief(10.5).certainty_at(29.99) is CERTAIN
    assert spent.belief(30.0).reason == "run_limit_spent"


def test_a_cancelled_lease_is_followed_on(sent: RenewalPlan) -> None:
    asked = sent.after_refusal(10.5, reason=RenewalRefusal.CANCEL_ASKED, jitter=0.0)
    assert asked.due_at == 20.0
    followed = asked.after_sent(20.0).after_answer(20.1, remaining=seconds(30), jitter=0.0)
    assert followed.cancel_asked
    assert followed.deadline == Deadline(50.0)


def lose_by_refusal(plan: RenewalPlan) -> RenewalPlan:
    return plan.after_refusal(11.0, reason=RenewalRefusal.STALE_OWNER, jitter=0.0)


def lose_by_late_answer(plan: RenewalPlan) -> RenewalPlan:
    return plan.after_answer(31.0, remaining=seconds(30), jitter=0.0)


def lose_by_late_failure(plan: RenewalPlan) -> RenewalPlan:
    return plan.after_failure(31.0, jitter=0.0)


@pytest.mark.parametrize("lose", [lose_by_refusal, lose_by_late_answer, lose_by_late_failure])
def test_nothing_that_follows_a_loss_changes_it(
    lose: Callable[[RenewalPlan], RenewalPlan], sent: RenewalPlan
) -> None:
    lost = lose(sent)
    later = (
        lost.after_sent(12.0)
        .after_answer(12.5, remaining=seconds(30), jitter=0.0)
        .after_failure(13.0, jitter=0.0)
        .after_refusal(14.0, reason=RenewalRefusal.CANCEL_ASKED, jitter=0.0)
    )
    assert later == lost
    assert lost.certainty(0.0) is LOST
    assert not lost.due(20.0)
