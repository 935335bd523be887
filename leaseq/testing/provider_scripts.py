"""The answers a scripted provider can give: a right one, and each fault by its name."""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from leaseq.testing.provider_log import Cause, Seen
from leaseq.testing.provider_wire import STREAM_TYPE, Gate, Wire


class Script(Protocol):
    """How one request is answered. A script of your own is a class with this method."""

    def play(self, wire: Wire) -> None:
        """Answer the request, move by move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer without a fault.

    Streamed, it sends headers once `headers_gate` lets it, then one chunk for each of `tokens`
    (an endless iterable is ended by the client), each once `token_gate` lets it through.
    """

    tokens: Iterable[str] = ("Once", " upon", " a", " time")
    prompt_tokens: int = 7
    finish_reason: str = "stop"
    has_usage: bool = True
    headers_gate: Gate | None = None
    token_gate: Gate | None = None

    def play(self, wire: Wire) -> None:
        """Stream it, or send it whole where no stream was asked for."""
        wire.wait(self.headers_gate)
        if wire.asked.get("stream"):
            self._stream(wire)
        else:
            self._whole(wire)

    def _stream(self, wire: Wire) -> None:
        wire.begin_stream()
        count = stream_tokens(wire, self.tokens, token_gate=self.token_gate)
        wire.send_event(chunk_of(wire, {}, finish_reason=self.finish_reason))
        if self.has_usage:
            wire.send_event({**chunk_of(wire, None), "usage": self._usage(count)})
        wire.end_computing(Cause.FINISHED)
        wire.end_stream(b"data: [DONE]\n\n")

    def _whole(self, wire: Wire) -> None:
        wire.start_computing()
        tokens = list(self.tokens)
        message = {"role": "assistant", "content": "".join(tokens)}
        reply: dict[str, Any] = {
            **chunk_of(wire, None),
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": self.finish_reason, "message": message}],
        }
        if self.has_usage:
            reply["usage"] = self._usage(len(tokens))
        wire.end_computing(Cause.FINISHED)
        wire.note(Seen.ANSWERED)
        wire.answer(200, json.dumps(reply).encode())

    def _usage(self, count: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """An answer with an error status, having computed nothing."""

    status: int = 400
    message: str = "the request makes no sense"
    retry_after: str | None = None
    location: str | None = None

    def play(self, wire: Wire) -> None:
        """Answer at once."""
        headers = {"Retry-After": self.retry_after, "Location": self.location}
        wire.note(Seen.REFUSED)
        wire.answer(
            self.status,
            json.dumps(error_of(self.status, self.message)).encode(),
            headers={name: value for name, value in headers.items() if value is not None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAfterAccepting:
    """A server error for a request whose computation has begun, and failed."""

    status: int = 500
    message: str = "the model ran out of memory"

    def play(self, wire: Wire) -> None:
        """Compute, fail and say so."""
        wire.start_computing()
        wire.end_computing(Cause.FAILED)
        wire.answer(self.status, json.dumps(error_of(self.status, self.message)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DropBeforeHeaders:
    """The connection closes before a word is said, while the computation goes on to its end."""

    def play(self, wire: Wire) -> None:
        """Compute behind a closed connection."""
        wire.start_computing()
        wire.drop()
        wire.end_computing(Cause.FINISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """A stream that breaks off after these tokens."""

    tokens: Iterable[str] = ("Once", " upon")

    def play(self, wire: Wire) -> None:
        """Stream, then close the connection."""
        wire.begin_stream()
        stream_tokens(wire, self.tokens)
        wire.drop()
        wire.end_computing(Cause.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A stream of these very bytes after one token, ended as HTTP would have it.

    For what no sane server says: a chunk that is not JSON, an endless line, a wrong type.
    """

    pieces: Iterable[bytes]
    content_type: str = STREAM_TYPE

    def play(self, wire: Wire) -> None:
        """Send one token and the pieces."""
        wire.begin_stream(content_type=self.content_type)
        stream_tokens(wire, ["Once"])
        for piece in self.pieces:
            wire.send(piece)
        wire.end_computing(Cause.FAILED)
        wire.end_stream()


def malformed_chunk() -> Raw:
    """Return a script whose second chunk is cut JSON."""
    return Raw(pieces=[b'data: {"choices": [{"del\n\n'])


def endless_line() -> Raw:
    """Return a script whose second chunk never ends."""
    return Raw(pieces=itertools.chain([b'data: {"choices": "'], itertools.repeat(b"x" * 65_536)))


def wrong_content_type() -> Raw:
    """Return a script that streams, but calls it a web page."""
    return Raw(pieces=[], content_type="text/html; charset=utf-8")


def stream_tokens(wire: Wire, tokens: Iterable[str], *, token_gate: Gate | None = None) -> int:
    """Compute and send one chunk for each token; return how many there were."""
    count = 0
    for token in tokens:
        wire.wait(token_gate)
        if count == 0:
            wire.start_computing()
            wire.send_event(chunk_of(wire, {"role": "assistant", "content": None}))
        wire.send_event(chunk_of(wire, {"content": token}))
        count += 1
    return count


def chunk_of(
    wire: Wire, delta: Mapping[str, Any] | None, *, finish_reason: str | None = None
) -> dict[str, Any]:
    """Return one chunk of a streamed completion; without a delta it has no choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": f"chatcmpl-{wire.arrival}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": wire.asked.get("model", ""),
        "choices": [] if delta is None else [choice],
    }


def error_of(status: int, message: str) -> dict[str, Any]:
    """Return an error as OpenAI's API words it."""
    return {"error": {"code": status, "message": message, "type": "scripted"}}
