"""Private serving over the OpenAI API: llama.cpp, vLLM and their like, always streamed (SPEC E1).

A streamed reply tells acceptance (its headers), start (its first token), progress (each piece)
and completion (its last chunk) apart, and such servers end a computation with its connection.
"""

import json
import re
import ssl
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import httpcore2

from leaseq.errors import ProviderError
from leaseq.providers import options
from leaseq.providers.base import (
    Accepted,
    Capabilities,
    Event,
    Finished,
    InferenceRequest,
    Progress,
    Started,
    Stopped,
    Usage,
)
from leaseq.providers.http import (
    BrokenReplyError,
    Patience,
    Post,
    StopAskedError,
    Timeouts,
    plain,
    post,
    server_sent,
)
from leaseq.vocabulary import ProviderClass

CAPABILITIES: Final = Capabilities(
    version=1,
    provider_class=ProviderClass.NEITHER,
    ends_with_connection=True,
    proves_acceptance="response headers with status 200 and type text/event-stream",
    proves_start="the first chunk that holds generated text or a finish reason",
    deadline_field=None,
    cancel_means="closing the connection; the server ends the computation",
    cancel_costs="the tokens computed until then",
    not_found_means="the path or the model does not exist at this server; nothing was computed",
    signature_scheme=None,
    key_lifetime=timedelta(0),
    poll_floor=None,
)

KEYS: Final = ("BASE_URL", "MODEL", "API_KEY", "TIMEOUT_SECONDS")
OURS: Final = ("model", "stream", "stream_options")
NOT_CARRIED: Final = ("n", "tools", "functions")
WORD_MAX: Final = 200
TOKENS_MAX: Final = 2**31 - 1
DONE: Final = b"[DONE]"
# PostgreSQL stores neither; a model may be made to say them.
UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

Kind = TypeVar("Kind", dict[str, Any], list[Any], str)


class OpenAICompatible:
    """A StreamingProvider that posts chat completions to one server."""

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        model: str,
        api_key: Callable[[], str] | None,
        timeouts: Timeouts,
    ) -> None:
        self.name = name
        self.endpoint = f"{base_url}/chat/completions"
        self.model = model
        self.capabilities = CAPABILITIES
        self._api_key = api_key
        self._timeouts = timeouts

    @classmethod
    def from_config(cls, name: str, config: options.Config) -> Self:
        """Build it from its settings: BASE_URL (with /v1), MODEL, API_KEY, TIMEOUT_SECONDS.

        Raises Misconfigured.
        """
        options.check_keys(name, config, known=KEYS)
        return cls(
            name=name,
            base_url=options.base_url(name, config),
            model=options.text(name, config, "MODEL"),
            api_key=options.secret(name, config, "API_KEY"),
            timeouts=Timeouts(**options.seconds(name, config, defaults=asdict(Timeouts()))),
        )

    def body(self, request: InferenceRequest) -> bytes:
        """Return the bytes that `stream` will send, keys in order, or refuse the payload."""
        for key in request.payload:
            if key in OURS:
                raise self._cannot_carry(request, f"sets {key!r}, which this adapter sets itself")
            if key in NOT_CARRIED:
                raise self._cannot_carry(request, f"sets {key!r}; only one text can come back")
        if not request.payload.get("messages"):
            # A server takes an empty list for a licence to invent until its context is full.
            raise self._cannot_carry(request, "has no messages")
        sent = {
            **request.payload,
            "model": request.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            return json.dumps(sent, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise self._cannot_carry(request, f"is not JSON: {error}") from error

    def stream(
        self, request: InferenceRequest, *, should_stop: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """Send the request once and yield what is heard; see StreamingProvider."""
        secret = self._api_key() if self._api_key else None
        heard = _Heard()
        patience = Patience(self._timeouts, should_stop=should_stop)
        try:
            with post(
                self._post(request, secret), patience=patience, tls=lambda: self._tls
            ) as reply:
                reply.demand("text/event-stream")
                heard.provider_request_id = _word(reply.header("x-request-id"))
                yield Accepted(provider_request_id=heard.provider_request_id)
                for data in server_sent(reply.chunks()):
                    yield from heard.take(data)
                    if heard.done:
                        break
                finished = heard.finished()
        except StopAskedError:
            yield Stopped(completion_tokens=heard.tokens, text=heard.text)
            return
        yield finished

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpcore2.default_ssl_context()

    def _post(self, request: InferenceRequest, secret: str | None) -> Post:
        headers = {
            "Accept": "text/event-stream",
            "Content-Type": "application/json",
            "User-Agent": "leaseq",
            "Idempotency-Key": request.idempotency_key,
            "X-Request-Id": request.request_id,
        }
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        return Post(
            url=self.endpoint,
            headers=headers,
            body=self.body(request),
            secret=secret,
            ids=self._ids(request),
        )

    def _ids(self, request: InferenceRequest) -> dict[str, str]:
        return {"provider": self.name, "request_id": request.request_id}

    def _cannot_carry(self, request: InferenceRequest, why: str) -> ProviderError:
        return ProviderError(
            f"the payload {why}; nothing was sent", outcome="known_failed", **self._ids(request)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What one chunk says; `computed` where it shows that the model gave something out."""

    provider_request_id: str | None
    text: str
    computed: bool
    finish_reason: str | None
    usage: Usage | None


@dataclass(slots=True)
class _Heard:
    """All that the stream has said so far."""

    tokens: int = 0
    started: bool = False
    done: bool = False
    provider_request_id: str | None = None
    _pieces: list[str] = field(default_factory=list)
    _finish_reason: str | None = None
    _usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, data: bytes) -> Iterator[Started | Progress]:
        """Take one event in; yield what it means for the attempt."""
        if data == DONE:
            self.done = True
            return
        chunk = _read_chunk(data)
        self.provider_request_id = self.provider_request_id or chunk.provider_request_id
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._usage = chunk.usage or self._usage
        if not self.started and (chunk.computed or chunk.finish_reason):
            self.started = True
            yield Started()
        if chunk.computed:
            # A chunk may carry several tokens; where it tells the count, that is the truth.
            told = chunk.usage.completion_tokens if chunk.usage else 0
            self.tokens = max(self.tokens + 1, told)
            self._pieces.append(chunk.text)
            yield Progress(completion_tokens=self.tokens, text=chunk.text)

    def finished(self) -> Finished:
        """Return the end, or raise BrokenReplyError where the stream only broke off."""
        if not self.done or self._finish_reason is None:
            raise BrokenReplyError("the stream broke off before its end")
        return Finished(
            text=self.text,
            usage=self._usage,
            finish_reason=self._finish_reason,
            provider_request_id=self.provider_request_id,
        )


def _read_chunk(data: bytes) -> _Chunk:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenReplyError("a chunk that is not JSON") from error
    if not isinstance(found, dict):
        raise BrokenReplyError("a chunk that is no object")
    if "error" in found:
        raise BrokenReplyError(f"the provider says {plain(str(found['error']), WORD_MAX)}")
    choices = _member(found.get("choices"), list) or [{}]
    choice = _member(choices[0], dict)
    delta = _member(choice.get("delta"), dict)
    text = _member(delta.get("content"), str)
    thought = _member(delta.get("reasoning_content"), str)
    return _Chunk(
        provider_request_id=_word(found.get("id")),
        text=UNSTORABLE.sub("\ufffd", text),
        computed=bool(text or thought),
        finish_reason=_word(choice.get("finish_reason")),
        usage=_read_usage(found.get("usage")),
    )


def _read_usage(found: Any) -> Usage | None:
    """Read the token counts; a server that gives none leaves the work unpriced (SPEC M3)."""
    if found is None:
        return None
    counts = _member(found, dict)
    return Usage(
        prompt_tokens=_count(counts.get("prompt_tokens")),
        completion_tokens=_count(counts.get("completion_tokens")),
    )


def _count(found: Any) -> int:
    if type(found) is not int or not 0 <= found <= TOKENS_MAX:
        raise BrokenReplyError(f"a token count of {plain(repr(found), WORD_MAX)}")
    return found


def _member(found: Any, kind: type[Kind]) -> Kind:
    """Take a part of a chunk that has one kind or is not there (then: an empty one)."""
    if found is None:
        return kind()
    if not isinstance(found, kind):
        raise BrokenReplyError(f"a chunk with {plain(repr(found), WORD_MAX)} for a {kind.__name__}")
    return found


def _word(found: Any) -> str | None:
    """Take an id or a reason, short enough and clean enough to be stored."""
    word = _member(found, str)
    if len(word) > WORD_MAX or not word.isprintable():
        raise BrokenReplyError(f"an id or reason of {plain(word, WORD_MAX)!r}")
    return word or None
