"""A scripted provider that speaks the OpenAI chat completions API, as llama.cpp's server does.

It computes nothing: each request is answered by a script, and what happened is kept as the
provider's own log, against which a test holds what leaseq believes.
"""

import contextlib
import hashlib
import itertools
import json
import socket
import sys
import threading
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from leaseq.testing.provider_log import Cause, Entry, Log, Seen
from leaseq.testing.provider_scripts import (
    DropBeforeHeaders,
    FailAfterAccepting,
    Raw,
    Refuse,
    Reply,
    Script,
    Truncate,
    endless_line,
    error_of,
    malformed_chunk,
    wrong_content_type,
)
from leaseq.testing.provider_wire import ClientGoneError, Gate, ServerClosingError, Wire

__all__ = [
    "Cause",
    "DropBeforeHeaders",
    "Entry",
    "FailAfterAccepting",
    "Gate",
    "Raw",
    "Refuse",
    "Reply",
    "Script",
    "ScriptedServer",
    "Seen",
    "Truncate",
    "Wire",
    "endless_line",
    "malformed_chunk",
    "wrong_content_type",
]

MODEL: Final = "scripted"
COMPLETIONS: Final = "/v1/chat/completions"
SEND_WITHIN_S: Final = 5.0
STOP_WITHIN_S: Final = 0.02


class ScriptedServer:
    """An OpenAI-compatible server on 127.0.0.1 and a free port, as a context manager.

    Leaving it ends every script that still waits, and raises the first error of a script that
    broke, so that a fault in a script never passes for one of the code under test.
    """

    def __init__(self, *, default: Script | None = None) -> None:
        self._default: Script = default or Reply()
        self._scripts: deque[Script] = deque()
        self._taking = threading.Lock()
        self._arrivals = itertools.count(1)
        self._log = Log()
        self._closing = threading.Event()
        self._http = _Listener(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(STOP_WITHIN_S,), name="scripted-provider"
        )

    @property
    def url(self) -> str:
        """The server's root; /health is below it."""
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes for its base URL."""
        return f"{self.url}/v1"

    @property
    def log(self) -> tuple[Entry, ...]:
        """What was seen so far, in order."""
        return self._log.entries

    @property
    def submits(self) -> Counter[str]:
        """How many requests arrived under each idempotency key."""
        return self._log.submits

    @property
    def running(self) -> int:
        """How many computations have started and not ended."""
        return self._log.running

    def script(self, *scripts: Script) -> None:
        """Answer the next requests by these, one each and in this order, then by the default."""
        self._scripts.extend(scripts)

    def wait_for(
        self, seen: Seen, *, key: str | None = None, times: int = 1, within_s: float = 5.0
    ) -> Entry:
        """Return the entry that says this for the given time (under a key, if one is given).

        Raises AssertionError, with the log, when it is not there in time.
        """
        return self._log.wait_for(seen, key=key, times=times, within_s=within_s)

    def play(self, handler: BaseHTTPRequestHandler, body: bytes, asked: dict[str, Any]) -> None:
        """Answer one request by the next script."""
        wire = Wire(
            handler,
            asked=asked,
            body_digest=hashlib.sha256(body).hexdigest(),
            arrival=next(self._arrivals),
            log=self._log,
            closing=self._closing,
        )
        wire.note(Seen.ARRIVED)
        with self._taking:
            script = self._scripts.popleft() if self._scripts else self._default
        try:
            script.play(wire)
        except ClientGoneError:
            wire.note(Seen.DISCONNECTED)
            wire.end_computing(Cause.DISCONNECTED)
            handler.close_connection = True
        except ServerClosingError:
            wire.end_computing(Cause.SHUT_DOWN)
            handler.close_connection = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()
        self._thread.join()
        if error is None and self._http.faults:
            raise self._http.faults[0]


class _Listener(ThreadingHTTPServer):
    """Keeps its connections, to hang up on them, and what went wrong in its threads."""

    daemon_threads = False

    def __init__(self, owner: ScriptedServer) -> None:
        self.owner = owner
        self.faults: list[BaseException] = []
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.faults.append(error)

    def hang_up(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Reads requests; the answers come from the owner's scripts."""

    protocol_version = "HTTP/1.1"
    timeout = SEND_WITHIN_S
    server: _Listener

    def do_GET(self) -> None:
        match self.path:
            case "/health":
                self._answer(200, {"status": "ok"})
            case "/v1/models":
                model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "leaseq"}
                self._answer(200, {"object": "list", "data": [model]})
            case _:
                self._answer(404, error_of(404, f"no page {self.path}"))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
        elif self.path != COMPLETIONS:
            self._answer(404, error_of(404, f"no page {self.path}"))
        else:
            self._complete(body)

    def _complete(self, body: bytes) -> None:
        try:
            asked = json.loads(body)
        except ValueError:
            self._answer(400, error_of(400, "the body is not JSON"))
        else:
            self.server.owner.play(self, body, asked)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the log of the server is its own."""

    def _answer(self, status: int, found: dict[str, Any]) -> None:
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
