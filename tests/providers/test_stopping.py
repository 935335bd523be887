"""Leaving a stream ends its computation: what `ends_with_connection` declares (SPEC L5a)."""

from contextlib import closing
from itertools import repeat

import pytest

from leaseq.errors import OwnershipLost
from leaseq.providers.base import Accepted, Event, Progress, Stopped, StreamingProvider
from leaseq.testing.provider import Cause, Gate, Reply, ScriptedServer, Seen
from tests.providers.conftest import REQUEST, go_on

ENDLESS = Reply(tokens=repeat(" and"))


def demand_end(server: ScriptedServer) -> None:
    """The server saw the client go, and computes no longer."""
    gone = server.wait_for(Seen.DISCONNECTED)
    ended = server.wait_for(Seen.COMPUTATION_ENDED)
    assert (gone.arrival, ended.cause) == (1, Cause.DISCONNECTED)
    assert server.running == 0
    assert server.submits == {"key-1": 1}


def test_closing_the_iterator_ends_the_computation(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(ENDLESS)

    with closing(provider.stream(REQUEST, should_stop=go_on)) as events:
        for event in events:
            if isinstance(event, Progress):
                break
        assert server.running == 1

    demand_end(server)


def test_closing_the_iterator_before_the_first_token_leaves_nothing_waiting(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(token_gate=Gate()))

    with closing(provider.stream(REQUEST, should_stop=go_on)) as events:
        assert isinstance(next(events), Accepted)

    server.wait_for(Seen.DISCONNECTED)
    assert Seen.COMPUTATION_STARTED not in {entry.seen for entry in server.log}


def test_a_stop_between_pieces_ends_the_computation_and_says_what_came(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(ENDLESS)
    heard: list[Event] = []

    def should_stop() -> bool:
        return any(isinstance(event, Progress) for event in heard)

    for event in provider.stream(REQUEST, should_stop=should_stop):
        heard.append(event)
        if isinstance(event, Stopped):
            demand_end(server)

    last = heard[-1]
    pieces = [event for event in heard if isinstance(event, Progress)]
    assert isinstance(last, Stopped)
    assert last.completion_tokens == pieces[-1].completion_tokens
    assert last.text == "".join(piece.text for piece in pieces)


def test_a_stop_is_heard_while_no_token_comes(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(token_gate=Gate()))
    heard: list[Event] = []

    heard.extend(provider.stream(REQUEST, should_stop=lambda: bool(heard)))

    assert heard == [
        Accepted(provider_request_id=None),
        Stopped(completion_tokens=0, text=""),
    ]
    server.wait_for(Seen.DISCONNECTED)


def test_a_stop_is_heard_while_the_server_queues_the_request(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(headers_gate=Gate()))

    events = list(provider.stream(REQUEST, should_stop=lambda: bool(server.submits)))

    assert events == [Stopped(completion_tokens=0, text="")]
    server.wait_for(Seen.DISCONNECTED)
    assert Seen.COMPUTATION_STARTED not in {entry.seen for entry in server.log}


def test_a_stop_asked_before_the_start_sends_nothing(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    events = list(provider.stream(REQUEST, should_stop=lambda: True))

    assert events == [Stopped(completion_tokens=0, text="")]
    assert server.log == ()


def test_what_the_caller_raises_ends_the_computation_and_comes_out_as_it_is(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(ENDLESS)
    lost = OwnershipLost("the lease is gone")
    heard: list[Event] = []

    def guard() -> bool:
        if any(isinstance(event, Progress) for event in heard):
            raise lost
        return False

    with pytest.raises(OwnershipLost) as raised:
        heard.extend(provider.stream(REQUEST, should_stop=guard))

    assert raised.value is lost
    demand_end(server)


def test_a_stream_heard_to_its_end_is_no_disconnection(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    list(provider.stream(REQUEST, should_stop=go_on))

    assert Seen.ANSWERED in {entry.seen for entry in server.log}
    assert Seen.DISCONNECTED not in {entry.seen for entry in server.log}
