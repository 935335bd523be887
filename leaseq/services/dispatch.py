"""Record a provider request: intent before the first byte, then what was heard (SPEC E2, E3)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from leaseq.db.identity import new_id
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Hold, ProviderRequest
from leaseq.rules import attempts as rules
from leaseq.rules.handoff import decide_heard
from leaseq.rules.ownership import OwnerProof
from leaseq.rules.transitions import Refused
from leaseq.services import facts, usage
from leaseq.services.attempts import Act, mark, owner_act, refuse
from leaseq.services.events import storable
from leaseq.vocabulary import OPEN_REQUEST_STATES, AttemptState, JobState, RequestState

DETAIL_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a request goes, as declared by the adapter at this moment."""

    provider: str
    endpoint: str
    model: str
    ends_with_connection: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A committed intent: from here on the attempt counts as possibly sent (SPEC L5)."""

    request_id: UUID
    idempotency_key: str
    proof: OwnerProof


def key_of(attempt_id: UUID) -> str:
    """Return the idempotency key of an attempt: stable over every sending of it (SPEC E3)."""
    return f"leaseq-{attempt_id}"


def record_intent(proof: OwnerProof, *, target: Target, body: bytes) -> Intent:
    """Pass the dispatch gate and record the request, before anything is sent (SPEC L4, E3).

    One request per attempt. Raises TransitionRefused where the lease is not certainly held, a
    cancellation was asked for, or the hold is gone; then nothing may be sent.
    """
    digest = hashlib.sha256(body).hexdigest()
    with atomic():
        act = owner_act(proof)
        job, attempt = act.locked.job, act.locked.attempt
        hold = Hold.objects.filter(job=job).order_by("-created_at").first()
        word = act.facts.word
        if not isinstance(word, rules.ByOwner):
            raise LeaseqBug("an intent is the owner's", attempt_id=attempt.pk)
        verdict = rules.decide_intent(
            rules.IntentFacts(
                attempt=act.facts.attempt,
                word=word,
                hold=facts.of_hold(hold),
                has_request=ProviderRequest.objects.filter(attempt=attempt).exists(),
            )
        )
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="not sent", attempt_id=attempt.pk)
        request = ProviderRequest.objects.create(
            id=new_id(),
            attempt=attempt,
            provider=target.provider,
            endpoint=target.endpoint,
            model=target.model,
            idempotency_key=key_of(attempt.pk),
            body_digest=digest,
            ends_with_connection=target.ends_with_connection,
            fence_epoch=proof.fence.epoch,
            fence=proof.fence.counter,
            prepared_at=act.story.now,
        )
        changed = Attempt.objects.filter(
            pk=attempt.pk, state=AttemptState.OPEN, possibly_sent=False
        ).update(possibly_sent=True)
        if changed != 1:
            raise LeaseqBug("a locked attempt changed under its lock", attempt_id=attempt.pk)
        act.story.tell(
            "intent_recorded", attempt_id=attempt.pk, request=str(request.pk), body=digest
        )
        act.story.save()
    return Intent(request_id=request.pk, idempotency_key=request.idempotency_key, proof=proof)


def record_accepted(intent: Intent, *, provider_request_id: str | None) -> None:
    """Record that the provider took the request; that says nothing of compute (SPEC E2)."""
    with atomic():
        act, request = _act_on(intent)
        verdict = rules.decide_accept(act.facts)
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="acceptance not recorded", request=intent.request_id)
        _hear(
            request,
            RequestState.ACCEPTED,
            accepted_at=act.story.now,
            provider_request_id=provider_request_id,
        )
        mark(act, kind="accepted", to_state=JobState.PROVIDER_ACCEPTED, field="accepted_at")
        act.story.save()


def record_started(intent: Intent) -> None:
    """Record that compute started, on the provider's own sign of it alone (SPEC E2)."""
    with atomic():
        act, request = _act_on(intent)
        verdict = rules.decide_start(act.facts)
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="start not recorded", request=intent.request_id)
        _hear(request, RequestState.RUNNING, started_at=act.story.now)
        mark(act, kind="started", to_state=JobState.RUNNING, field="started_at")
        act.story.save()


def record_ended(
    intent: Intent,
    *,
    state: RequestState,
    detail: str = "",
    quantities: Mapping[str, Decimal] | None = None,
) -> None:
    """Record the end of a request with the usage that the provider reported (SPEC F4).

    Repeating it changes nothing: the usage was booked with the first.
    """
    with atomic():
        act, request = _act_on(intent)
        allowed = rules.decide_fail(act.facts)
        if isinstance(allowed, Refused):
            raise refuse(allowed, message="end not recorded", request=intent.request_id)
        if request.state == state:
            return
        _hear(
            request,
            state,
            ended_at=act.story.now,
            detail=storable(detail, length_max=DETAIL_LENGTH_MAX),
        )
        lines = usage.book(
            act.locked.attempt,
            job=act.locked.job,
            provider=request.provider,
            model=request.model,
            quantities=quantities or {},
            now=act.story.now,
        )
        act.story.tell(
            f"request_{state}",
            attempt_id=act.locked.attempt.pk,
            reason=detail,
            request=str(request.pk),
            usage={line.unit: str(line.quantity) for line in lines},
        )
        act.story.save()


def record_unknown(intent: Intent, *, detail: str) -> None:
    """Record that nothing is known of what became of a request (PROMISES P8)."""
    with atomic():
        act, request = _act_on(intent)
        allowed = rules.decide_fail(act.facts)
        if isinstance(allowed, Refused):
            raise refuse(allowed, message="doubt not recorded", request=intent.request_id)
        state = RequestState.UNKNOWN if request.state == RequestState.PREPARED else request.state
        ProviderRequest.objects.filter(pk=request.pk, state=request.state).update(
            state=state, detail=storable(detail, length_max=DETAIL_LENGTH_MAX)
        )
        act.story.tell(
            "request_unknown",
            attempt_id=act.locked.attempt.pk,
            reason=detail,
            request=str(request.pk),
        )
        act.story.save()


def _act_on(intent: Intent) -> tuple[Act, ProviderRequest]:
    act = owner_act(intent.proof)
    return act, ProviderRequest.objects.locked().get(pk=intent.request_id)


def _hear(request: ProviderRequest, state: RequestState, **values: Any) -> None:
    known = RequestState(request.state)
    verdict = decide_heard(known, state)
    if isinstance(verdict, Refused):
        raise refuse(verdict, message=f"the request is {known}, not {state}", request=request.pk)
    changed = ProviderRequest.objects.filter(
        pk=request.pk, state=known, state__in=sorted(OPEN_REQUEST_STATES)
    ).update(state=verdict, **values)
    if changed != 1:
        raise LeaseqBug("a locked request changed under its lock", request_id=request.pk)
