"""When capacity is given back, and what a request's state says of its attempt (SPEC E2, E4, E5)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from leaseq.rules.transitions import Refused, check_request_move
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    Handoff,
    ProviderClass,
    RequestState,
    TransitionRefusal,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCapacity:
    """The slot goes back to its pool; the permits stay with the control plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCapacity:
    """The slot stays taken by the control plane though no process runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVerdict:
    """The request has not ended, or nothing is known of it: the attempt stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """Record acceptance and start where missing (the end proves them), then complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DidNotSucceed:
    """Ask `outcome.decide_loss` with this cause; `provider_terminal` is the evidence."""

    cause: EndReason
    attempt_outcome: AttemptState
    provider_terminal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFacts:
    """A request whose fate is not known, and what its provider offers against a duplicate.

    `may_duplicate` is the operator's explicit choice for class C (SPEC M4).
    """

    now: datetime
    provider_class: ProviderClass
    prepared_at: datetime
    key_lifetime: timedelta
    may_duplicate: bool
    cancel_asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Send the same request again under the same key: the provider makes it one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Cancel the key at the provider; a next attempt opens once that is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Ask and wait: the attempt stays outcome_unknown, its hold kept, an operator told (M4)."""


def decide_acceptance(handoff: Handoff) -> ReleaseCapacity | KeepCapacity:
    """Say whether the slot is given back when the provider accepted (SPEC E4)."""
    match handoff:
        case Handoff.RELEASE_AT_ACCEPTANCE:
            return ReleaseCapacity()
        case Handoff.HOLD_UNTIL_START | Handoff.HOLD_UNTIL_DONE:
            return KeepCapacity()
    assert_never(handoff)


def decide_started(handoff: Handoff) -> ReleaseCapacity | KeepCapacity:
    """Say whether the slot is given back when the provider started (SPEC E4)."""
    match handoff:
        case Handoff.RELEASE_AT_ACCEPTANCE | Handoff.HOLD_UNTIL_START:
            return ReleaseCapacity()
        case Handoff.HOLD_UNTIL_DONE:
            return KeepCapacity()
    assert_never(handoff)


def decide_heard(known: RequestState, heard: RequestState) -> RequestState | Refused:
    """Return the state to record after hearing one; late news changes nothing (SPEC E6).

    Hearing that nothing is known, or what is known already, keeps the state; news that goes
    back in time is refused.
    """
    if heard in (known, RequestState.UNKNOWN):
        return known
    reason = check_request_move(known, heard)
    return heard if reason is None else Refused(reason=reason)


def decide_verdict(state: RequestState) -> NoVerdict | Succeeded | DidNotSucceed:
    """Say what the recorded state of a request means for its attempt (SPEC L5, E5)."""
    match state:
        case (
            RequestState.PREPARED
            | RequestState.UNKNOWN
            | RequestState.ACCEPTED
            | RequestState.RUNNING
            | RequestState.CANCELLING
        ):
            return NoVerdict()
        case RequestState.SUCCEEDED:
            return Succeeded()
        case RequestState.FAILED | RequestState.ABORTED:
            return _ended(EndReason.PROVIDER_FAILED, AttemptState.FAILED)
        case RequestState.CANCELLED:
            return _ended(EndReason.CANCELLED, AttemptState.CANCELLED)
        case RequestState.REJECTED:
            return _ended(EndReason.PROVIDER_REJECTED, AttemptState.REJECTED)
        case RequestState.EXPIRED:
            return _ended(EndReason.MAX_PROVIDER_WAIT, AttemptState.EXPIRED)
        case RequestState.MONITORING_ENDED:
            return DidNotSucceed(
                cause=EndReason.MONITORING_ENDED,
                attempt_outcome=AttemptState.LOST,
                provider_terminal=False,
            )
    assert_never(state)


def decide_unknown(facts: UnknownFacts) -> Resend | Tombstone | Park | Refused:
    """Say what may be done about a request of which nothing is known (SPEC E3, M4).

    A resend uses the same key and so belongs to the same attempt. After a cancel request
    nothing is sent again. A key past its lifetime protects from nothing: the request is
    then treated as one of class C (PROMISES 2.1).
    """
    match facts.provider_class:
        case ProviderClass.CANCELLABLE:
            return Tombstone()
        case ProviderClass.KEYED:
            key_protects = facts.now < facts.prepared_at + facts.key_lifetime
        case ProviderClass.NEITHER:
            key_protects = False
        case _:
            assert_never(facts.provider_class)
    if not key_protects and not facts.may_duplicate:
        return Park()
    if facts.cancel_asked:
        return Refused(reason=TransitionRefusal.CANCEL_ASKED)
    return Resend()


def _ended(cause: EndReason, outcome: AttemptState) -> DidNotSucceed:
    return DidNotSucceed(cause=cause, attempt_outcome=outcome, provider_terminal=True)
