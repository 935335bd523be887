"""One streamed request of a worker: intent, send, and each sign recorded as it comes (SPEC E).

The network stands between transactions: nothing is locked while the provider is spoken to.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, assert_never

from django.db.models import QuerySet

from leaseq.conf import settings
from leaseq.errors import CancelAsked, Misconfigured, ProviderError
from leaseq.models import ProviderRequest
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
T = TypeVar("T")


class Persist(Protocol):
    """How the owner does a verb of the authority: again, while it may hold the lease (SPEC D3)."""

    def __call__(self, act: Callable[[], T]) -> T:
        """Return what the act returns, or raise what it raises."""


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
    persist: Persist,
) -> Completion:
    """Send one request for an owned attempt and follow its streamed reply to the end.

    Response headers are recorded as acceptance, the first token as compute start, tokens as
    progress, the last chunk's usage as usage. `check` raises where the owner must stop; the
    connection is then closed, which ends the computation. `persist` does every record. Raises
    ProviderError, TransitionRefused at the dispatch gate, and whatever `check` and `persist` raise.
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
    body = adapter.body(request)
    sent = ProviderRequest.objects.filter(attempt=proof.attempt_id)
    tried = _Tried(lambda: dispatch.record_intent(proof, target=target, body=body), stands=sent)
    intent = persist(tried)
    if intent is None:
        raise ProviderError(
            "the intent stands, but its commit had no answer, so nothing was sent",
            outcome="unknown",
            attempt_id=proof.attempt_id,
        )
    follower = _Follower(intent, persist)
    try:
        with closing(adapter.stream(request, should_stop=check)) as events:
            for event in events:
                follower.take(event)
        return follower.completion()
    except CancelAsked:
        follower.report_all()
        raise
    except ProviderError as error:
        follower.take_error(error)
        raise


class _Tried(Generic[T]):
    """An act that is done once, also where the answer of its commit was lost and it comes again.

    Returns None where it stands already.
    """

    def __init__(self, act: Callable[[], T], *, stands: "QuerySet[ProviderRequest]") -> None:
        self._act = act
        self._stands = stands
        self._tried = False

    def __call__(self) -> T | None:
        if self._tried and self._stands.exists():
            return None
        self._tried = True
        return self._act()


class _Follower:
    """Records what a stream tells, each sign once."""

    def __init__(self, intent: Intent, persist: Persist) -> None:
        self._intent = intent
        self._persist = persist
        self._accepted = False
        self._started = False
        self._tokens = self._tokens_reported = 0
        self._reported_at = time.monotonic()
        self._completion: Completion | None = None

    def take(self, event: Event) -> None:
        match event:
            case Accepted(provider_request_id=name):
                self._once(
                    lambda: dispatch.record_accepted(self._intent, provider_request_id=name),
                    accepted_at__isnull=False,
                )
                self._accepted = True
            case Started():
                self._start()
            case Progress(completion_tokens=tokens):
                self._tokens = tokens
                if time.monotonic() - self._reported_at >= REPORT_EVERY_SECONDS:
                    self.report_all()
            case Finished():
                self._finish(event)
            case Stopped():
                raise ProviderError(
                    "the stream was stopped", outcome="unknown", request=self._intent.request_id
                )
            case _:
                assert_never(event)

    def report_all(self) -> None:
        """Report what came so far: booked if the attempt ends without the provider's own count."""
        if self._tokens == self._tokens_reported:
            return
        tokens = self._tokens
        self._reported_at = time.monotonic()
        report = {"tokens": tokens, "usage": {COMPLETION_TOKEN: tokens}}
        self._persist(lambda: attempts.progress(self._intent.proof, report=report))
        self._tokens_reported = tokens

    def _start(self) -> None:
        self._once(lambda: dispatch.record_started(self._intent), started_at__isnull=False)
        self._started = True

    def _finish(self, event: Finished) -> None:
        if not self._started:
            # A reply of no tokens ends before it shows a first one; its end proves the start.
            self._start()
        quantities = {UNREPORTED: Decimal(1)}
        if event.usage is not None:
            quantities = {
                PROMPT_TOKEN: Decimal(event.usage.prompt_tokens),
                COMPLETION_TOKEN: Decimal(event.usage.completion_tokens),
            }
        self._end(RequestState.SUCCEEDED, quantities=quantities)
        self._completion = Completion(
            text=event.text, finish_reason=event.finish_reason, usage=event.usage
        )

    def take_error(self, error: ProviderError) -> None:
        if error.outcome == "unknown":
            self.report_all()
            self._persist(lambda: dispatch.record_unknown(self._intent, detail=str(error)))
            return
        self._end(
            RequestState.FAILED if self._accepted else RequestState.REJECTED, detail=str(error)
        )

    def _end(
        self,
        state: RequestState,
        *,
        detail: str = "",
        quantities: Mapping[str, Decimal] | None = None,
    ) -> None:
        self._once(
            lambda: dispatch.record_ended(
                self._intent, state=state, detail=detail, quantities=quantities
            ),
            ended_at__isnull=False,
        )

    def _once(self, act: Callable[[], None], **stands: bool) -> None:
        row = ProviderRequest.objects.filter(pk=self._intent.request_id, **stands)
        self._persist(_Tried(act, stands=row))

    def completion(self) -> Completion:
        if self._completion is None:
            raise ProviderError(
                "the stream ended without a last word",
                outcome="unknown",
                request=self._intent.request_id,
            )
        return self._completion
