"""The embedded model server: what a stream looks like, and what ends with its connection."""

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from leaseq.errors import Misconfigured
from project.demo.services import ModelServer

pytestmark = pytest.mark.journey

ANSWER_WITHIN_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def open_stream(
    server: ModelServer, *, tokens: int, prompt: str = "Tell a tale."
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send a streamed request and return when its response headers are there."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_WITHIN_S)
    payload = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(payload), {"Content-Type": "application/json"}
    )
    return connection, connection.getresponse()


def chunks(response: http.client.HTTPResponse) -> Iterator[str]:
    """Give the data of each event as it comes."""
    for line in response:
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").decode().strip()


def busy_slots(server: ModelServer) -> int:
    with urllib.request.urlopen(f"{server.url}/slots", timeout=ANSWER_WITHIN_S) as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


def tokens_generated(server: ModelServer) -> int:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=ANSWER_WITHIN_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("llamacpp:tokens_predicted_total "):
                return int(float(line.split()[1]))
    raise AssertionError("the server counts no tokens")


def await_idle(server: ModelServer) -> None:
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while busy_slots(server):
        assert time.monotonic() < deadline, "a slot stays busy"


def test_it_serves_one_named_model(server: ModelServer) -> None:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=ANSWER_WITHIN_S) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == [ModelServer.model]


def test_a_stream_gives_headers_then_tokens_then_usage(server: ModelServer) -> None:
    connection, response = open_stream(server, tokens=12)
    with closing(connection):
        assert response.status == http.HTTPStatus.OK
        assert response.headers["Content-Type"] == "text/event-stream"
        *told, done = chunks(response)

    events = [json.loads(text) for text in told]
    contents = [
        event["choices"][0]["delta"]["content"]
        for event in events
        if event["choices"] and event["choices"][0]["delta"].get("content")
    ]
    assert done == "[DONE]"
    assert contents
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert events[-1]["usage"]["prompt_tokens"] > 0
    assert not any("usage" in event for event in events[:-1])


def test_headers_come_before_the_prompt_is_evaluated(server: ModelServer) -> None:
    begun = time.monotonic()
    connection, response = open_stream(server, tokens=1, prompt="walnut " * 600)
    with closing(connection):
        accepted = time.monotonic() - begun
        next(chunks(response))
        computed = time.monotonic() - begun

    # A long prompt takes a hundred times as long as its acceptance; a tenth leaves room.
    assert accepted < computed / 10


def test_a_third_request_gets_no_headers_until_a_slot_is_free(server: ModelServer) -> None:
    first, first_response = open_stream(server, tokens=900)
    second, second_response = open_stream(server, tokens=900)
    next(chunks(first_response))
    next(chunks(second_response))
    before = tokens_generated(server)

    with closing(second):
        waiting = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.5)
        with closing(waiting):
            waiting.request("POST", "/completion", '{"prompt": "x", "n_predict": 1}')
            with pytest.raises(TimeoutError):
                waiting.getresponse()
        first.close()
        first_response.close()
        third, third_response = open_stream(server, tokens=1)
        with closing(third):
            assert third_response.status == http.HTTPStatus.OK
            assert list(chunks(third_response))[-1] == "[DONE]"
    second_response.close()
    await_idle(server)
    assert tokens_generated(server) - before < 1800


def test_a_stream_that_is_closed_ends_its_generation(server: ModelServer) -> None:
    await_idle(server)
    before = tokens_generated(server)
    connection, response = open_stream(server, tokens=900)
    stream = chunks(response)
    for _ in range(5):
        next(stream)
    assert busy_slots(server) == 1

    response.close()
    connection.close()
    await_idle(server)

    assert tokens_generated(server) - before < 450


@pytest.mark.parametrize(
    ("slots", "context_tokens", "threads"),
    [(0, 2048, 1), (2, 255, 1), (2, 2048, 0)],
    ids=["no-slot", "no-context", "no-thread"],
)
def test_sizes_that_cannot_work_are_refused(slots: int, context_tokens: int, threads: int) -> None:
    with pytest.raises(Misconfigured, match="cannot work: give at least"):
        ModelServer(slots=slots, context_tokens=context_tokens, threads=threads)
