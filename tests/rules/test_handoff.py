"""What a provider's word means, for every state of a request and every class of provider."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from leaseq.rules import handoff as rules
from leaseq.rules.outcome import LOSS_OUTCOMES
from leaseq.rules.transitions import Refused
from leaseq.vocabulary import (
    OPEN_REQUEST_STATES,
    EndReason,
    Handoff,
    ProviderClass,
    RequestState,
    TransitionRefusal,
)

from .facts import HOUR, NOW, TICK


@pytest.mark.parametrize(
    ("handoff", "at_acceptance", "at_start"),
    [
        (Handoff.RELEASE_AT_ACCEPTANCE, rules.ReleaseCapacity(), rules.ReleaseCapacity()),
        (Handoff.HOLD_UNTIL_START, rules.KeepCapacity(), rules.ReleaseCapacity()),
        (Handoff.HOLD_UNTIL_DONE, rules.KeepCapacity(), rules.KeepCapacity()),
    ],
)
def test_capacity_goes_back_when_the_policy_says(
    handoff: Handoff, at_acceptance: Any, at_start: Any
) -> None:
    assert rules.decide_acceptance(handoff) == at_acceptance
    assert rules.decide_started(handoff) == at_start


@pytest.mark.parametrize("state", sorted(OPEN_REQUEST_STATES))
def test_an_open_request_gives_no_verdict(state: RequestState) -> None:
    assert rules.decide_verdict(state) == rules.NoVerdict()


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (RequestState.FAILED, EndReason.PROVIDER_FAILED),
        (RequestState.ABORTED, EndReason.PROVIDER_FAILED),
        (RequestState.CANCELLED, EndReason.CANCELLED),
        (RequestState.REJECTED, EndReason.PROVIDER_REJECTED),
        (RequestState.EXPIRED, EndReason.MAX_PROVIDER_WAIT),
        (RequestState.MONITORING_ENDED, EndReason.MONITORING_ENDED),
    ],
)
def test_an_ended_request_gives_a_cause_and_only_the_end_of_monitoring_is_no_evidence(
    state: RequestState, cause: EndReason
) -> None:
    verdict = rules.decide_verdict(state)
    assert isinstance(verdict, rules.DidNotSucceed)
    assert verdict.cause is cause
    assert verdict.attempt_outcome is LOSS_OUTCOMES[cause]
    assert verdict.provider_terminal is (state is not RequestState.MONITORING_ENDED)


def test_success_is_told_apart() -> None:
    assert rules.decide_verdict(RequestState.SUCCEEDED) == rules.Succeeded()


def test_hearing_nothing_or_the_same_changes_nothing() -> None:
    for state in RequestState:
        assert rules.decide_heard(state, RequestState.UNKNOWN) is state
        assert rules.decide_heard(state, state) is state


def test_late_news_is_refused() -> None:
    late = rules.decide_heard(RequestState.SUCCEEDED, RequestState.RUNNING)
    assert late == Refused(reason=TransitionRefusal.NOT_A_LEGAL_MOVE)


def test_the_same_news_in_any_order_leads_to_the_same_state() -> None:
    news = [RequestState.ACCEPTED, RequestState.RUNNING, RequestState.SUCCEEDED]
    for order in permutations(news + news):
        state = RequestState.UNKNOWN
        for heard in order:
            verdict = rules.decide_heard(state, heard)
            state = state if isinstance(verdict, Refused) else verdict
        assert state is RequestState.SUCCEEDED


KEYED = rules.UnknownFacts(
    now=NOW,
    provider_class=ProviderClass.KEYED,
    prepared_at=NOW - HOUR + TICK,
    key_lifetime=HOUR,
    may_duplicate=False,
    cancel_asked=False,
)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, rules.Resend()),
        ({"prepared_at": NOW - HOUR}, rules.Park()),
        ({"prepared_at": NOW - HOUR - TICK}, rules.Park()),
        ({"prepared_at": NOW - HOUR, "may_duplicate": True}, rules.Resend()),
        ({"provider_class": ProviderClass.CANCELLABLE}, rules.Tombstone()),
        ({"provider_class": ProviderClass.CANCELLABLE, "cancel_asked": True}, rules.Tombstone()),
        ({"provider_class": ProviderClass.NEITHER}, rules.Park()),
        ({"provider_class": ProviderClass.NEITHER, "may_duplicate": True}, rules.Resend()),
        ({"cancel_asked": True}, Refused(reason=TransitionRefusal.CANCEL_ASKED)),
    ],
    ids=[
        "key-lives",
        "key-at-its-end",
        "key-past-it",
        "key-past-it-but-duplicates-allowed",
        "tombstone",
        "tombstone-after-a-cancel",
        "neither",
        "duplicates-allowed",
        "no-resend-after-a-cancel",
    ],
)
def test_a_request_of_unknown_fate_is_treated_by_its_class(
    changes: dict[str, Any], verdict: Any
) -> None:
    assert rules.decide_unknown(replace(KEYED, **changes)) == verdict
