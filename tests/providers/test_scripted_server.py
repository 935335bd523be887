"""The scripted provider itself: a client that is not ours sees an OpenAI-compatible server."""

import http.client
import json
from dataclasses import dataclass
from typing import Any

import pytest

from leaseq.testing.provider import Cause, Gate, Refuse, Reply, ScriptedServer, Seen, Wire
from tests.providers.conftest import REQUEST


def ask(
    server: ScriptedServer, method: str, path: str, body: bytes | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    try:
        connection.request(method, path, body, {"Idempotency-Key": "key-1"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def complete(server: ScriptedServer) -> tuple[int, Any]:
    return ask(server, "POST", "/v1/chat/completions", json.dumps(REQUEST.payload).encode())


def test_health_and_models_are_told(server: ScriptedServer) -> None:
    assert ask(server, "GET", "/health") == (200, {"status": "ok"})
    status, models = ask(server, "GET", "/v1/models")
    assert (status, [model["id"] for model in models["data"]]) == (200, ["scripted"])
    assert server.log == ()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_that_is_not_there_is_not_found(server: ScriptedServer, method: str) -> None:
    assert ask(server, method, "/v2/chat", b"{}")[0] == 404


def test_a_body_that_is_not_json_is_refused(server: ScriptedServer) -> None:
    assert ask(server, "POST", "/v1/chat/completions", b"{")[0] == 400
    assert server.log == ()


def test_a_completion_that_is_not_streamed_comes_whole(server: ScriptedServer) -> None:
    server.script(Reply(tokens=["a", "b"]))

    status, reply = complete(server)

    assert status == 200
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    assert reply["usage"]["completion_tokens"] == 2
    assert [entry.seen for entry in server.log] == [
        Seen.ARRIVED,
        Seen.COMPUTATION_STARTED,
        Seen.COMPUTATION_ENDED,
        Seen.ANSWERED,
    ]


def test_scripts_are_played_in_order_and_then_the_default() -> None:
    with ScriptedServer(default=Refuse(status=418)) as server:
        server.script(Refuse(status=429), Reply())

        assert [complete(server)[0] for _ in range(3)] == [429, 200, 418]
        assert server.submits == {"key-1": 3}


def test_what_does_not_happen_is_reported_with_the_log(server: ScriptedServer) -> None:
    complete(server)

    with pytest.raises(AssertionError, match=r"no disconnected(.|\n)*computation_ended"):
        server.wait_for(Seen.DISCONNECTED, within_s=0.05)


@dataclass
class Broken:
    """A script with a fault of its own."""

    def play(self, wire: Wire) -> None:
        raise KeyError(wire.key)


def test_a_script_that_breaks_is_not_taken_for_the_code_under_test() -> None:
    with (
        pytest.raises(KeyError, match="key-1"),
        ScriptedServer(default=Broken()) as server,
        pytest.raises(http.client.RemoteDisconnected),
    ):
        complete(server)


def test_leaving_the_server_ends_what_still_waits() -> None:
    with ScriptedServer(default=Reply(token_gate=Gate())) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
        connection.request("POST", "/v1/chat/completions", b'{"stream": true}')
        server.wait_for(Seen.ACCEPTED)

    assert server.running == 0
    assert server.log[-1].cause in {None, Cause.SHUT_DOWN}
    connection.close()
