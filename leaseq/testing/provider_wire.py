"""One request to a scripted provider, and the moves of which an answer is made."""

import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from leaseq.testing.provider_log import Cause, Entry, Log, Seen

LOOK_EVERY_S: Final = 0.02
STREAM_TYPE: Final = "text/event-stream"


class Gate:
    """Holds a script until the test lets it on: a number of times, or from now on always."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self._open = threading.Event()

    def let_pass(self, times: int = 1) -> None:
        """Let this many through, now or later."""
        self._passes.release(times)

    def open(self) -> None:
        """Let all through from now on."""
        self._open.set()
        self._passes.release()

    def passes(self, *, within_s: float) -> bool:
        """Say whether one may go through, waiting at most this long."""
        if self._open.is_set():
            return True
        return self._passes.acquire(timeout=within_s)


class ClientGoneError(Exception):
    """The client closed its connection while the script still had something to do."""


class ServerClosingError(Exception):
    """The server is being closed under a script that waits."""


class Wire:
    """One request as its script sees it: what was asked, and the moves of an answer."""

    def __init__(
        self,
        handler: BaseHTTPRequestHandler,
        *,
        asked: dict[str, Any],
        body_digest: str,
        arrival: int,
        log: Log,
        closing: threading.Event,
    ) -> None:
        self.arrival = arrival
        self.asked = asked
        self.key = handler.headers.get("Idempotency-Key", "")
        self._handler = handler
        self._digest = body_digest
        self._log = log
        self._closing = closing
        self._computing = False

    def note(self, seen: Seen, *, cause: Cause | None = None) -> None:
        """Write one line of the log."""
        self._log.add(
            Entry(
                seen=seen,
                arrival=self.arrival,
                key=self.key,
                request_id=self._handler.headers.get("X-Request-Id", ""),
                body_digest=self._digest,
                authorization=self._handler.headers.get("Authorization", ""),
                at=time.monotonic(),
                cause=cause,
            )
        )

    def start_computing(self) -> None:
        """Begin the work that would cost money."""
        self._computing = True
        self.note(Seen.COMPUTATION_STARTED)

    def end_computing(self, cause: Cause) -> None:
        """End that work, if any is under way."""
        if self._computing:
            self._computing = False
            self.note(Seen.COMPUTATION_ENDED, cause=cause)

    def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer at once and in one piece."""
        self._head(status, {**(headers or {}), "Content-Length": str(len(body))}, content_type)
        self.send_raw(body)

    def begin_stream(self, *, content_type: str = STREAM_TYPE) -> None:
        """Send the headers of a streamed answer: the request is accepted."""
        self.note(Seen.ACCEPTED)
        self._head(200, {"Transfer-Encoding": "chunked"}, content_type)

    def send(self, data: bytes) -> None:
        """Send one piece of a streamed answer."""
        self.send_raw(_chunked(data))

    def send_event(self, chunk: Mapping[str, Any]) -> None:
        """Send one server-sent event that holds this chunk."""
        self.send(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def end_stream(self, last: bytes = b"") -> None:
        """Send the end of a streamed answer, together with its last piece if there is one."""
        self.note(Seen.ANSWERED)
        self.send_raw((_chunked(last) if last else b"") + b"0\r\n\r\n")

    def send_raw(self, data: bytes) -> None:
        """Put bytes on the connection. Raises ClientGoneError."""
        self._demand_client()
        try:
            self._handler.wfile.write(data)
        except OSError as error:
            raise ClientGoneError from error

    def drop(self) -> None:
        """Close the connection as it is, in the middle of whatever was said."""
        self._handler.close_connection = True
        try:
            self._handler.connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            raise ClientGoneError from error

    def wait(self, gate: Gate | None) -> None:
        """Wait at a gate. Raises ClientGoneError or ServerClosingError where that comes first."""
        while gate is not None and not gate.passes(within_s=LOOK_EVERY_S):
            if self._closing.is_set():
                raise ServerClosingError
            self._demand_client()

    def _head(self, status: int, headers: Mapping[str, str], content_type: str) -> None:
        self._demand_client()
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", content_type)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def _demand_client(self) -> None:
        readable, _, _ = select.select([self._handler.connection], [], [], 0)
        if not readable:
            return
        try:
            gone = self._handler.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            gone = True
        if gone:
            raise ClientGoneError


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
