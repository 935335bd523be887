"""One streamed request of a worker: intent, send, and each sign recorded as it comes (SPEC E).

The network stands between transactions: nothing is locked while the provider is spoken to.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, assert_never

from leaseq.conf import settings
from leaseq.errors import Misconfigured, ProviderError
from leaseq.providers.base import (
    Accepted,
    Event,
    Finished,
    InferenceRequest,
    Progress,
    Provider,
    Started,
    Stopped,
    StreamingProvider,
    Usage,
)
from leaseq.providers.registry import build_providers
from leaseq.rules.ownership import OwnerProof
from leaseq.services import attempts, dispatch
from leaseq.services.dispatch import Intent, Target
from leaseq.vocabulary import RequestState

PROMPT_TOKEN = "prompt_token"  # noqa: S105 - a unit of usage
COMPLETION_TOKEN = "completion_token"  # noqa: S105 - a unit of usage
UNREPORTED = "unreported_request"
REPORT_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The whole reply, why it ended, and the usage that the provider reported, if it did."""

    text: str
    finish_reason: str
    usage: Usage | None


@cache
def providers() -> dict[str, Provider]:
    """Return the configured providers by name; raises Misconfigured."""
    return build_providers(settings().providers)


def provider(name: str) -> Provider:
    """Return one provider by its name in LEASEQ['PROVIDERS']; raises Misconfigured."""
    found = providers().get(name)
    if found is None:
        known = ", ".join(sorted(providers())) or "none"
        raise Misconfigured(f"LEASEQ['PROVIDERS'] has no {name!r}; it has {known}")
    return found


def infer(
    proof: OwnerProof,
    *,
    provider_name: str,
    payload: Mapping[str, Any],
    check: Callable[[], bool],
) -> Completion:
    """Send one request for an owned attempt and follow its streamed reply to the end.

    Response headers are recorded as acceptance, the first token as compute start, tokens as
    progress, the last chunk's usage as usage. `check` raises where the owner must stop; the
    connection is then closed, which ends the computation. Raises ProviderError, TransitionRefused
    at the dispatch gate, and whatever `check` raises.
    """
    adapter = provider(provider_name)
    if not isinstance(adapter, StreamingProvider):
        raise Misconfigured(
            f"the provider {provider_name!r} does not stream, so a task cannot infer through it"
        )
    request = InferenceRequest(
        request_id=str(proof.attempt_id),
        idempotency_key=dispatch.key_of(proof.attempt_id),
        model=adapter.model,
        payload=payload,
    )
    target = Target(
        provider=provider_name,
        endpoint=adapter.endpoint,
        model=adapter.model,
        ends_with_connection=adapter.capabilities.ends_with_connection,
    )
    check()
    intent = dispatch.record_intent(proof, target=target, body=adapter.body(request))
    follower = _Follower(intent)
    try:
        with closing(adapter.stream(request, should_stop=check)) as events:
            for event in events:
                follower.take(event)
    except ProviderError as error:
        follower.take_error(error)
        raise
    return follower.completion()


class _Follower:
    """Records what a stream tells, each sign once."""

    def __init__(self, intent: Intent) -> None:
        self._intent = intent
        self._accepted = False
        self._started = False
        self._reported_at = time.monotonic()
        self._completion: Completion | None = None

    def take(self, event: Event) -> None:
        match event:
            case Accepted(provider_request_id=provider_request_id):
                dispatch.record_accepted(self._intent, provider_request_id=provider_request_id)
                self._accepted = True
            case Started():
                dispatch.record_started(self._intent)
                self._started = True
            case Progress(completion_tokens=tokens):
                self._report(tokens)
            case Finished():
                self._finish(event)
            case Stopped():
                raise ProviderError(
                    "the stream was stopped", outcome="unknown", request=self._intent.request_id
                )
            case _:
                assert_never(event)

    def _report(self, tokens: int) -> None:
        now = time.monotonic()
        if now - self._reported_at < REPORT_EVERY_SECONDS:
            return
        self._reported_at = now
        attempts.progress(
            self._intent.proof, report={"tokens": tokens, "usage": {COMPLETION_TOKEN: tokens}}
        )

    def _finish(self, event: Finished) -> None:
        if not self._started:
            # A reply of no tokens ends before it shows a first one; its end proves the start.
            dispatch.record_started(self._intent)
        quantities = {UNREPORTED: Decimal(1)}
        if event.usage is not None:
            quantities = {
                PROMPT_TOKEN: Decimal(event.usage.prompt_tokens),
                COMPLETION_TOKEN: Decimal(event.usage.completion_tokens),
            }
        dispatch.record_ended(self._intent, state=RequestState.SUCCEEDED, quantities=quantities)
        self._completion = Completion(
            text=event.text, finish_reason=event.finish_reason, usage=event.usage
        )

    def take_error(self, error: ProviderError) -> None:
        if error.outcome == "unknown":
            dispatch.record_unknown(self._intent, detail=str(error))
            return
        state = RequestState.FAILED if self._accepted else RequestState.REJECTED
        dispatch.record_ended(self._intent, state=state, detail=str(error))

    def completion(self) -> Completion:
        if self._completion is None:
            raise ProviderError(
                "the stream ended without a last word",
                outcome="unknown",
                request=self._intent.request_id,
            )
        return self._completion
