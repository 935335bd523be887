"""Wrong rules, each one mistake away from the real ones: the search must find every one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from leaseq.rules import attempts, money, outcome, renewal
from leaseq.rules.attempts import (
    ActFacts,
    AttemptFacts,
    ByOwner,
    ByProvider,
    ClaimFacts,
    IntentFacts,
)
from leaseq.rules.money import HoldExpiryFacts, SettlementFacts
from leaseq.rules.outcome import LossFacts
from leaseq.rules.ownership import LeaseFacts
from leaseq.rules.renewal import RenewalFacts
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    AttemptState,
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
)

from .world import Rules


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A wrong rule, and the invariant by which it must be found."""

    name: str
    rules: Rules
    breaks: str


def _alive(lease: LeaseFacts | None, facts: AttemptFacts) -> LeaseFacts | None:
    if lease is None or lease.status is not LeaseStatus.ACTIVE:
        return lease
    return replace(lease, expires_at=max(lease.expires_at, facts.now + timedelta(seconds=1)))


def _ignoring_expiry(word: ByOwner | ByProvider, facts: AttemptFacts) -> ByOwner | ByProvider:
    if isinstance(word, ByProvider):
        return word
    return replace(word, lease=_alive(word.lease, facts))


def _ignoring_fence(word: ByOwner | ByProvider) -> ByOwner | ByProvider:
    if isinstance(word, ByProvider) or word.lease is None:
        return word
    return replace(word, proof=replace(word.proof, fence=word.lease.fence))


def _act(change: Callable[[ActFacts], ActFacts]) -> Callable[..., object]:
    return lambda facts, *, keep_result: attempts.decide_complete(
        change(facts), keep_result=keep_result
    )


def _with_state(facts: ActFacts, found: frozenset[JobState], taken: JobState) -> ActFacts:
    if facts.attempt.job_state not in found:
        return facts
    attempt = replace(facts.attempt, job_state=taken, attempt_state=AttemptState.OPEN)
    return replace(facts, attempt=attempt)


def _revive(facts: RenewalFacts) -> object:
    if facts.lease is None or facts.lease.status is not LeaseStatus.ACTIVE:
        return renewal.decide_renewal(facts)
    later = max(facts.lease.expires_at, facts.now + timedelta(seconds=1))
    return renewal.decide_renewal(replace(facts, lease=replace(facts.lease, expires_at=later)))


def _renew_any_fence(facts: RenewalFacts) -> object:
    if facts.lease is None:
        return renewal.decide_renewal(facts)
    proof = replace(facts.proof, fence=facts.lease.fence)
    return renewal.decide_renewal(replace(facts, proof=proof))


def _renew_without_bounds(facts: RenewalFacts) -> object:
    far = timedelta(days=9)
    bounds = replace(facts.bounds, lease_life_max=far, run_time_max=far, queue_age_max=far)
    return renewal.decide_renewal(replace(facts, bounds=bounds))


def _renew_any_version(facts: RenewalFacts) -> object:
    return renewal.decide_renewal(replace(facts, expected_version=None))


def _renew_without_budget(facts: RenewalFacts) -> object:
    return renewal.decide_renewal(replace(facts, renewals_max=1_000))


def _renew_after_cancel(facts: RenewalFacts) -> object:
    return renewal.decide_renewal(replace(facts, cancel_asked_at=None))


def _claim_over(facts: ClaimFacts) -> object:
    return attempts.decide_claim(replace(facts, slot_lease=None))


def _claim_twice(facts: ClaimFacts) -> object:
    if facts.attempt.job_state is not JobState.DISPATCHING:
        return attempts.decide_claim(facts)
    attempt = replace(facts.attempt, job_state=JobState.QUEUED)
    return attempts.decide_claim(replace(facts, attempt=attempt))


def _claim_by_old_message(facts: ClaimFacts) -> object:
    attempt = replace(
        facts.attempt,
        attempt_id=facts.attempt.current_attempt_id,
        attempt_state=AttemptState.OPEN,
    )
    return attempts.decide_claim(replace(facts, attempt=attempt))


def _intend_when_expired(facts: IntentFacts) -> object:
    word = replace(facts.word, lease=_alive(facts.word.lease, facts.attempt))
    return attempts.decide_intent(replace(facts, word=word))


def _intend_after_cancel(facts: IntentFacts) -> object:
    attempt = replace(facts.attempt, cancel_asked_at=None)
    return attempts.decide_intent(replace(facts, attempt=attempt))


def _start_unaccepted(facts: ActFacts) -> object:
    dispatching = frozenset({JobState.DISPATCHING})
    return attempts.decide_start(_with_state(facts, dispatching, JobState.PROVIDER_ACCEPTED))


def _of_current_attempt(facts: ActFacts) -> ActFacts:
    attempt = replace(
        facts.attempt,
        attempt_id=facts.attempt.current_attempt_id,
        attempt_state=AttemptState.OPEN,
    )
    return replace(facts, attempt=attempt)


def _lose_as_never_sent(facts: LossFacts) -> object:
    return outcome.decide_loss(replace(facts, possibly_sent=False))


def _lose_as_stopped(facts: LossFacts) -> object:
    return outcome.decide_loss(replace(facts, holder_stopped=True))


def _lose_uncounted(facts: LossFacts) -> object:
    return outcome.decide_loss(replace(facts, attempts_counted=0))


def _lose_after_cancel(facts: LossFacts) -> object:
    return outcome.decide_loss(replace(facts, cancel_asked=False))


def _lose_trusting_silence(facts: LossFacts) -> object:
    if facts.cause is not EndReason.MONITORING_ENDED:
        return outcome.decide_loss(facts)
    return outcome.decide_loss(
        replace(facts, cause=EndReason.PROVIDER_UNKNOWN, provider_terminal=True)
    )


def _settle_again(facts: SettlementFacts) -> object:
    return money.decide_settlement(replace(facts, hold_state=HoldState.HELD))


def _settle_early(facts: SettlementFacts) -> object:
    return money.decide_settlement(replace(facts, job_state=JobState.FAILED))


def _settle_unproven(facts: SettlementFacts) -> object:
    return money.decide_settlement(replace(facts, closed_by_evidence=True))


def _settle_without_usage(facts: SettlementFacts) -> object:
    return money.decide_settlement(replace(facts, costs=()))


def _expire_hold_though_sent(facts: HoldExpiryFacts) -> object:
    return money.decide_hold_expiry(replace(facts, possibly_sent=False, has_usage=False))


def _complete_over_terminal(facts: ActFacts) -> ActFacts:
    return _with_state(facts, TERMINAL_JOB_STATES, JobState.RUNNING)


def _complete_unstarted(facts: ActFacts) -> ActFacts:
    return _with_state(facts, frozenset({JobState.PROVIDER_ACCEPTED}), JobState.RUNNING)


def _complete_when_expired(facts: ActFacts) -> ActFacts:
    return replace(facts, word=_ignoring_expiry(facts.word, facts.attempt))


def _complete_any_fence(facts: ActFacts) -> ActFacts:
    return replace(facts, word=_ignoring_fence(facts.word))


_ROWS: list[tuple[str, str, Rules]] = [
    ("a renewal revives an expired lease", "L3", Rules(renew=_revive)),
    ("a renewal ignores the fence", "L3", Rules(renew=_renew_any_fence)),
    ("a renewal ignores the hard deadlines", "L4", Rules(renew=_renew_without_bounds)),
    ("a renewal ignores its budget", "L4", Rules(renew=_renew_without_budget)),
    ("a renewal ignores a cancel request", "L4", Rules(renew=_renew_after_cancel)),
    ("a repeated renewal renews again", "L6", Rules(renew=_renew_any_version)),
    ("a claim goes over a live lease", "L1", Rules(claim=_claim_over)),
    ("a duplicate claim runs twice", "Q4", Rules(claim=_claim_twice)),
    ("a claim takes an old attempt's message", "SPEC", Rules(claim=_claim_by_old_message)),
    ("an intent passes with an expired lease", "L3", Rules(intend=_intend_when_expired)),
    ("an intent passes after a cancel request", "V5", Rules(intend=_intend_after_cancel)),
    ("a start needs no acceptance", "J1", Rules(start=_start_unaccepted)),
    ("a completion needs no start", "J1", Rules(complete=_act(_complete_unstarted))),
    ("a completion ignores the fence", "L3", Rules(complete=_act(_complete_any_fence))),
    ("a completion ignores expiry", "L3", Rules(complete=_act(_complete_when_expired))),
    ("a completion overwrites a cancel", "J2", Rules(complete=_act(_complete_over_terminal))),
    ("a callback completes another attempt", "C3", Rules(complete=_act(_of_current_attempt))),
    ("a loss forgets that it was possibly sent", "J3", Rules(lose=_lose_as_never_sent)),
    ("a loss takes silence for evidence", "J3", Rules(lose=_lose_trusting_silence)),
    ("a loss opens an attempt after a cancel", "B4a", Rules(lose=_lose_after_cancel)),
    ("possibly sent is taken back", "J8", Rules(unsend=lambda **_asked: None)),
    ("a hold is settled twice", "M2", Rules(settle=_settle_again)),
    ("a hold of a living job is released", "M5", Rules(settle=_settle_early)),
    ("a hold is released without evidence", "M5", Rules(settle=_settle_unproven)),
    ("a settlement forgets usage", "F2", Rules(settle=_settle_without_usage)),
    ("a hold expires though it was sent", "M5", Rules(expire_hold=_expire_hold_though_sent)),
]
REMOTE = [Planted(name=name, breaks=breaks, rules=rules) for name, breaks, rules in _ROWS]
CONNECTED = [
    Planted(
        name="a loss leaves attempts uncounted", breaks="P4", rules=Rules(lose=_lose_uncounted)
    ),
    Planted(
        name="a loss takes any holder for stopped",
        breaks="J3",
        rules=Rules(lose=_lose_as_stopped),
    ),
    Planted(
        name="a loss forgets that it was possibly sent",
        breaks="J3",
        rules=Rules(lose=_lose_as_never_sent),
    ),
]
