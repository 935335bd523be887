"""One HTTP exchange with a provider: bounded in time and bytes, sent once, never redirected.

Every exchange opens a connection of its own and closes it. So no stale connection makes a
request's fate unknown, leaving an exchange is what ends a computation, and nothing is shared
across a fork. Proxies named by the environment are not used.
"""

import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import httpcore2

from leaseq.errors import ProviderError

LOOK_EVERY_S: Final = 0.25
LINE_BYTES_MAX: Final = 1_048_576
REPLY_BYTES_MAX: Final = 16_777_216
ERROR_BYTES_MAX: Final = 65_536
ERROR_BODY_S: Final = 5.0
WORDS_MAX: Final = 500

TAKEN: Final = range(200, 300)
REFUSED: Final = range(400, 500)
# A gateway says these while what it forwarded may be running: waited too long (408), another
# request with this key is in work (409), the client was thought to have left (499).
UNSURE_REFUSALS: Final = frozenset({408, 409, 499})
# The server sends us elsewhere and has done nothing; 302 and 303 may also follow a deed.
MOVED: Final = frozenset({301, 307, 308})

TRANSPORT_ERRORS: Final = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
)


class StopAskedError(Exception):
    """The caller does not want the exchange any longer."""


class BrokenReplyError(Exception):
    """The reply is late, too large, cut or not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds.

    `accept` bounds the wait for response headers, `read` each silence after them, `total` the
    whole exchange. A busy server may queue a request before it sends headers.
    """

    connect: float = 5.0
    accept: float = 300.0
    read: float = 60.0
    total: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What is sent, and the ids by which an error names it."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: str | None
    ids: Mapping[str, str]


class Patience:
    """Whether one exchange may go on: asked before everything that blocks, and during reads."""

    def __init__(self, timeouts: Timeouts, *, should_stop: Callable[[], bool]) -> None:
        self._timeouts = timeouts
        self._should_stop = should_stop
        self._total_at = self._silent_at = time.monotonic() + timeouts.total
        self._accepted = False
        self.sent = False

    def connecting(self) -> float:
        """Return the seconds that connecting may take."""
        return min(self._timeouts.connect, self.remaining())

    def sending(self) -> float:
        """Note that bytes may arrive from now on, and return the seconds to send them in."""
        remaining = self.remaining()
        if not self.sent:
            self.sent = True
            self._silent_at = time.monotonic() + self._timeouts.accept
        return min(self._timeouts.accept, remaining)

    def accepted(self) -> None:
        """Measure each silence by itself from now on."""
        self._accepted = True

    def listening(self) -> None:
        """Begin a read: the time since the last one was the caller's own."""
        if self._accepted:
            self._silent_at = time.monotonic() + self._timeouts.read

    def hurry(self, seconds: float) -> None:
        """Let what is left take no longer than this."""
        self._total_at = min(self._total_at, time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds until a limit is hit, above zero.

        Raises StopAskedError, BrokenReplyError when a limit was hit, or what the caller's
        `should_stop` raises.
        """
        if self._should_stop():
            raise StopAskedError
        now = time.monotonic()
        if now >= self._total_at:
            raise BrokenReplyError(f"no end within {self._timeouts.total:g} s")
        if now >= self._silent_at:
            silence = self._timeouts.read if self._accepted else self._timeouts.accept
            wanted = "more" if self._accepted else "answer"
            raise BrokenReplyError(f"no {wanted} for {silence:g} s")
        return min(self._total_at, self._silent_at) - now


class _Stream(httpcore2.NetworkStream):
    """A socket whose reads are cut in slices, so that patience is asked while one blocks.

    Patience sets every timeout; those of the engine are left unset.
    """

    def __init__(self, stream: httpcore2.NetworkStream, patience: Patience) -> None:
        self._stream = stream
        self._patience = patience

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        self._patience.listening()
        while True:
            look_in = min(LOOK_EVERY_S, self._patience.remaining())
            try:
                return self._stream.read(max_bytes, look_in)
            except httpcore2.ReadTimeout:
                continue

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._stream.write(buffer, self._patience.sending())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore2.NetworkStream:
        seconds = self._patience.connecting()
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, seconds), self._patience
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore2.NetworkBackend):
    """Opens the sockets of one exchange."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = httpcore2.SyncBackend().connect_tcp(
            host,
            port,
            timeout=self._patience.connecting(),
            local_address=local_address,
            socket_options=socket_options,
        )
        return _Stream(stream, self._patience)


class Reply:
    """A response whose headers are here and whose body is still to come."""

    def __init__(self, response: httpcore2.Response) -> None:
        self.status = response.status
        self._headers = {
            name.lower().decode("ascii"): value.decode("latin-1")
            for name, value in response.headers
        }
        self._response = response

    def header(self, name: str) -> str | None:
        """Return a header by its lower-case name, the last where it is repeated."""
        return self._headers.get(name)

    def chunks(self, *, bytes_max: int = REPLY_BYTES_MAX) -> Iterator[bytes]:
        """Yield the body as it arrives; raise BrokenReplyError where there is too much of it."""
        count = 0
        for chunk in self._response.iter_stream():
            count += len(chunk)
            if count > bytes_max:
                raise BrokenReplyError(f"more than {bytes_max} bytes")
            yield chunk

    def demand(self, content_type: str) -> None:
        """Raise BrokenReplyError unless the body is of this type and not compressed."""
        given = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if given != content_type:
            raise BrokenReplyError(f"{plain(given, 80) or 'no type'} where {content_type} is due")
        if self.header("content-encoding") not in {None, "identity"}:
            raise BrokenReplyError("a compressed body that was not asked for")

    def retry_after(self) -> float | None:
        """Return the seconds that the server asks us to wait, by its own clock, if it does."""
        asked = self.header("retry-after")
        if asked is None:
            return None
        if asked.isascii() and asked.isdigit():
            return float(asked[:9])
        try:
            wait = parsedate_to_datetime(asked) - parsedate_to_datetime(self.header("date") or "")
        except (TypeError, ValueError):
            return None
        return max(0.0, wait.total_seconds())


@contextmanager
def post(what: Post, *, patience: Patience, tls: Callable[[], ssl.SSLContext]) -> Iterator[Reply]:
    """Send one POST and hold its reply open; the connection is closed on the way out.

    Whatever goes wrong, here or where the body of the `with` reads the reply, comes out as a
    ProviderError: unknown from the first byte sent, save where the status says that nothing
    was done. StopAskedError comes out as it is.
    """
    url = httpcore2.URL(what.url)
    connection = httpcore2.HTTPConnection(
        url.origin,
        ssl_context=tls() if url.scheme == b"https" else None,
        http1=True,
        http2=False,
        retries=0,
        network_backend=_Backend(patience),
    )
    headers = [("Connection", "close"), ("Accept-Encoding", "identity"), *what.headers.items()]
    try:
        with (
            connection,
            connection.stream("POST", url, headers=headers, content=what.body) as response,
        ):
            reply = Reply(response)
            patience.accepted()
            if reply.status not in TAKEN:
                raise _refusal(reply, what, patience)
            yield reply
    except (*TRANSPORT_ERRORS, BrokenReplyError) as error:
        cause = str(error) or type(error).__name__
        raise ProviderError(
            f"the provider's answer is not known: {cause}"
            if patience.sent
            else f"the provider cannot be reached, and was sent nothing: {cause}",
            outcome="unknown" if patience.sent else "known_failed",
            **what.ids,
        ) from error


def server_sent(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each server-sent event; comments and other fields are passed over.

    Raises BrokenReplyError for a line or an event that is too long. What follows the last
    blank line is no event.
    """
    data: list[bytes] = []
    size = 0
    for line in _lines(chunks):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
            size += len(line)
            if size > LINE_BYTES_MAX:
                raise BrokenReplyError(f"an event of more than {LINE_BYTES_MAX} bytes")
        elif not line and data:
            yield b"\n".join(data)
            data, size = [], 0


def outcome_of(status: int) -> Literal["known_failed", "unknown"]:
    """Say whether a status proves that nothing was computed, nor will be (PROMISES P8)."""
    refused = status in REFUSED and status not in UNSURE_REFUSALS
    return "known_failed" if refused or status in MOVED else "unknown"


def plain(text: str, length_max: int) -> str:
    """Put text from outside on one line of printable characters."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return " ".join(printable.split())[:length_max]


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LINE_BYTES_MAX:
            raise BrokenReplyError(f"a line of more than {LINE_BYTES_MAX} bytes")
        for start in more:
            yield b"".join(begun).removesuffix(b"\r")
            begun, size = [start], len(start)


def _refusal(reply: Reply, what: Post, patience: Patience) -> ProviderError:
    patience.hurry(ERROR_BODY_S)
    words = _words(_error_body(reply))
    if what.secret:
        words = words.replace(what.secret, "[secret]")
    return ProviderError(
        f"the provider answered {reply.status}: {words[:WORDS_MAX] or 'without a word'}",
        outcome=outcome_of(reply.status),
        **what.ids,
        status=reply.status,
        retry_after=reply.retry_after(),
    )


def _error_body(reply: Reply) -> bytes:
    """Read what there is of it; the status is known, so nothing here may hide it."""
    body = bytearray()
    try:
        for chunk in reply.chunks(bytes_max=ERROR_BYTES_MAX):
            body += chunk
    except (*TRANSPORT_ERRORS, BrokenReplyError, StopAskedError):
        return bytes(body)
    return bytes(body)


def _words(body: bytes) -> str:
    """Find the provider's message where such servers put it, else take the body as it is."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = body.decode("utf-8", errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return plain(found if isinstance(found, str) else str(found), ERROR_BYTES_MAX)
