"""The Provider protocols, their frozen values and the capability table (SPEC E1, L6)."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from leaseq.vocabulary import ProviderClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter declares of its provider; raise `version` with every change (SPEC L6).

    `ends_with_connection` says that the provider computes no further once the connection that
    carries the reply is closed; the adapter's conformance test proves it (SPEC L5a). A
    `key_lifetime` of zero means that no idempotency key is honoured, a `poll_floor` of None
    that there is nothing to poll.
    """

    version: int
    provider_class: ProviderClass
    ends_with_connection: bool
    proves_acceptance: str
    proves_start: str
    deadline_field: str | None
    cancel_means: str
    cancel_costs: str
    not_found_means: str
    signature_scheme: str | None
    key_lifetime: timedelta
    poll_floor: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One submission, as its recorded intent says (SPEC E3); the payload is the caller's JSON."""

    request_id: str
    idempotency_key: str
    model: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the provider says it consumed, in tokens."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The provider took the request; nothing is computed yet that we know of (SPEC E2)."""

    provider_request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first sign of computation was heard (SPEC E2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A piece of text arrived; `completion_tokens` counts all so far, and never too many."""

    completion_tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The provider said that it is done; `text` is the whole of it.

    Without `usage` the work is unpriced, which is not the same as free (SPEC M3).
    """

    text: str
    usage: Usage | None
    finish_reason: str
    provider_request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The caller asked to stop and the connection is closed; tokens and text came before."""

    completion_tokens: int
    text: str


Event = Accepted | Started | Progress | Finished | Stopped


@runtime_checkable
class Provider(Protocol):
    """What every adapter has, whichever way its provider answers (SPEC E1)."""

    @property
    def name(self) -> str:
        """The provider's key in LEASEQ["PROVIDERS"]."""

    @property
    def endpoint(self) -> str:
        """Where requests go; recorded with each, for settings change under way (SPEC E3)."""

    @property
    def model(self) -> str:
        """The model that settings name for it, or an empty string."""

    @property
    def capabilities(self) -> Capabilities:
        """The declared table (SPEC L6)."""


@runtime_checkable
class StreamingProvider(Provider, Protocol):
    """A provider whose reply is streamed over the connection that carried the request.

    A provider that is submitted to and asked later has a protocol of its own beside this one.
    """

    def body(self, request: InferenceRequest) -> bytes:
        """Return the very bytes that `stream` will send, the same for the same request.

        Raises ProviderError (known_failed) for a payload that this adapter cannot carry.
        """

    def stream(
        self, request: InferenceRequest, *, should_stop: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """Send the request once, never again, and yield what is heard as it is heard.

        The order is Accepted, Started, any number of Progress, Finished; or Stopped after any
        of these, as soon as `should_stop` says yes. Nothing else ends the iterator quietly.
        Closing the iterator closes the connection: hold it in `contextlib.closing`.
        `should_stop` is asked in the caller's thread before every read and several times a
        second during one, so it must be quick; what it raises closes the connection and comes
        out as it is.

        Raises ProviderError: known_failed where nothing was computed nor will be, else
        unknown. Its ids hold provider and request_id and, where an answer came, status and
        retry_after (seconds, or None). Raises Misconfigured, having sent nothing, when the
        secret that settings refer to cannot be had.
        """
