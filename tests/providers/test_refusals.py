"""What is certain and what is not when a request goes wrong (PROMISES P8)."""

import json
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import repeat
from types import SimpleNamespace

import pytest

from leaseq.errors import ProviderError
from leaseq.providers.base import Accepted, Event, Finished, Progress, StreamingProvider
from leaseq.testing.provider import (
    DropBeforeHeaders,
    FailAfterAccepting,
    Gate,
    Raw,
    Refuse,
    Reply,
    Script,
    ScriptedServer,
    Seen,
    Truncate,
    Wire,
    endless_line,
    malformed_chunk,
    wrong_content_type,
)
from leaseq.testing.provider_wire import STREAM_TYPE
from tests.providers.conftest import REQUEST, Connect, go_on


def failed(provider: StreamingProvider) -> tuple[ProviderError, list[Event]]:
    """Send a request that fails; return the error and what was heard before it."""
    heard: list[Event] = []
    with pytest.raises(ProviderError) as error:
        heard.extend(provider.stream(REQUEST, should_stop=go_on))
    return error.value, heard


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param(400, "known_failed", id="bad_request"),
        pytest.param(401, "known_failed", id="no_key"),
        pytest.param(404, "known_failed", id="no_such_model"),
        pytest.param(422, "known_failed", id="not_understood"),
        pytest.param(429, "known_failed", id="too_many"),
        pytest.param(301, "known_failed", id="moved_for_ever"),
        pytest.param(307, "known_failed", id="moved"),
        pytest.param(308, "known_failed", id="moved_for_ever_with_its_method"),
        pytest.param(302, "unknown", id="found_elsewhere_perhaps_after_a_deed"),
        pytest.param(303, "unknown", id="see_the_result_elsewhere"),
        pytest.param(408, "unknown", id="gateway_waited_too_long"),
        pytest.param(409, "unknown", id="same_key_is_in_work"),
        pytest.param(499, "unknown", id="gateway_thought_us_gone"),
        pytest.param(500, "unknown", id="server_error"),
        pytest.param(502, "unknown", id="bad_gateway"),
        pytest.param(503, "unknown", id="unavailable"),
        pytest.param(504, "unknown", id="gateway_timeout"),
        pytest.param(599, "unknown", id="no_known_status"),
    ],
)
def test_a_status_is_a_failure_only_where_it_proves_that_nothing_runs(
    server: ScriptedServer, provider: StreamingProvider, status: int, outcome: str
) -> None:
    server.script(Refuse(status=status, location=f"{server.base_url}/elsewhere"))

    error, heard = failed(provider)

    assert error.outcome == outcome
    assert error.ids["status"] == status
    assert heard == []
    # Sent once: neither retried nor redirected.
    assert server.submits == {"key-1": 1}


def test_a_server_error_after_acceptance_is_unknown(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(FailAfterAccepting(status=500, message="out of memory"))

    error, _ = failed(provider)

    assert (error.outcome, error.ids["status"]) == ("unknown", 500)
    assert "out of memory" in error.message
    assert server.submits == {"key-1": 1}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(DropBeforeHeaders(), "disconnected", id="cut_before_headers"),
        pytest.param(Truncate(), "peer closed", id="cut_in_mid_stream"),
        pytest.param(Raw(pieces=[]), "broke off", id="ended_before_it_was_done"),
        pytest.param(
            Raw(pieces=[b'data: {"choices": [{"finish_reason": "stop"}]}\n\n']),
            "broke off",
            id="ended_with_a_reason_but_not_done",
        ),
        pytest.param(Raw(pieces=[b"data: [DONE]\n\n"]), "broke off", id="done_without_a_reason"),
        pytest.param(Raw(pieces=[b"data: [DONE]"]), "broke off", id="last_event_not_ended"),
        pytest.param(malformed_chunk(), "not JSON", id="malformed_chunk"),
        pytest.param(Raw(pieces=[b"data: [1]\n\n"]), "no object", id="chunk_of_another_kind"),
        pytest.param(Raw(pieces=[b"data: null\n\n"]), "no object", id="chunk_of_nothing"),
        pytest.param(Raw(pieces=[b"data: \xff\n\n"]), "not JSON", id="chunk_not_utf8"),
        pytest.param(
            Raw(pieces=[b"data: " + b"[" * 100_000 + b"\n\n"]), "not JSON", id="chunk_too_deep"
        ),
        pytest.param(
            Raw(pieces=[b'data: {"choices": {"0": 1}}\n\n']), "for a list", id="choices_no_list"
        ),
        pytest.param(
            Raw(pieces=[b'data: {"choices": [{"delta": {"content": 5}}]}\n\n']),
            "for a str",
            id="text_no_text",
        ),
        pytest.param(
            Raw(pieces=[b'data: {"id": "two\\nlines"}\n\n']), "an id", id="id_not_printable"
        ),
        pytest.param(
            Raw(pieces=[b'data: {"id": "%b"}\n\n' % (b"x" * 201)]), "an id", id="id_too_long"
        ),
        pytest.param(
            Raw(pieces=[b'data: {"error": {"message": "slot was taken"}}\n\n']),
            "slot was taken",
            id="error_in_mid_stream",
        ),
        pytest.param(endless_line(), "a line of more than", id="endless_line"),
        pytest.param(
            Raw(pieces=repeat(b"data: x\n" * 999)), "an event of more", id="endless_event"
        ),
        pytest.param(Raw(pieces=repeat(b"data\n" * 999)), "an event of more", id="empty_lines"),
        pytest.param(Raw(pieces=repeat(b": x\n\n" * 999)), "bytes", id="endless_comments"),
        pytest.param(wrong_content_type(), "text/html", id="wrong_content_type"),
    ],
)
def test_a_reply_that_breaks_off_or_makes_no_sense_is_unknown(
    server: ScriptedServer, provider: StreamingProvider, script: Script, message: str
) -> None:
    server.script(script)

    error, _ = failed(provider)

    assert error.outcome == "unknown"
    assert message in error.message
    assert error.ids == {"provider": "private", "request_id": "request-1"}
    assert server.submits == {"key-1": 1}


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param({"prompt_tokens": 1}, id="half"),
        pytest.param({"prompt_tokens": -1, "completion_tokens": 1}, id="negative"),
        pytest.param({"prompt_tokens": 1.5, "completion_tokens": 1}, id="fraction"),
        pytest.param({"prompt_tokens": True, "completion_tokens": 1}, id="yes"),
        pytest.param({"prompt_tokens": 2**31, "completion_tokens": 1}, id="too_many"),
        pytest.param([], id="no_object"),
    ],
)
def test_token_counts_that_cannot_be_are_not_believed(
    server: ScriptedServer, provider: StreamingProvider, usage: object
) -> None:
    chunk = json.dumps({"choices": [], "usage": usage}).encode()
    server.script(Raw(pieces=[b"data: %b\n\n" % chunk]))

    error, _ = failed(provider)

    assert error.outcome == "unknown"


def test_what_was_heard_before_a_cut_was_told(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Truncate(tokens=["a", "b", "c"]))

    _, heard = failed(provider)

    assert heard[0] == Accepted(provider_request_id=None)
    assert heard[-1] == Progress(completion_tokens=3, text="c")


def test_a_server_that_does_not_listen_was_sent_nothing(connect: Connect) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

    error, _ = failed(connect(BASE_URL=f"http://127.0.0.1:{port}/v1"))

    assert error.outcome == "known_failed"
    assert "sent nothing" in error.message


def test_a_name_that_does_not_resolve_was_sent_nothing(connect: Connect) -> None:
    error, _ = failed(connect(BASE_URL="http://nowhere.invalid/v1"))

    assert error.outcome == "known_failed"


def test_a_server_without_tls_was_sent_nothing(server: ScriptedServer, connect: Connect) -> None:
    error, _ = failed(connect(BASE_URL=server.base_url.replace("http:", "https:")))

    assert error.outcome == "known_failed"
    assert server.log == ()


def test_a_key_that_no_header_can_carry_was_not_sent(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    request = replace(REQUEST, idempotency_key="two\r\nlines")

    with pytest.raises(ProviderError) as error:
        list(provider.stream(request, should_stop=go_on))

    assert error.value.outcome == "known_failed"
    assert server.log == ()


def test_a_server_that_never_answers_is_unknown_after_the_wait_for_acceptance(
    server: ScriptedServer, connect: Connect
) -> None:
    server.script(Reply(headers_gate=Gate()))

    error, heard = failed(connect(TIMEOUT_SECONDS={"accept": 0.3}))

    assert (error.outcome, heard) == ("unknown", [])
    assert "no answer for 0.3 s" in error.message
    server.wait_for(Seen.DISCONNECTED)


def test_a_silence_in_mid_stream_is_unknown_after_the_wait_for_a_read(
    server: ScriptedServer, connect: Connect
) -> None:
    tokens = Gate()
    tokens.let_pass(2)
    server.script(Reply(token_gate=tokens))

    error, heard = failed(connect(TIMEOUT_SECONDS={"read": 0.3}))

    assert error.outcome == "unknown"
    assert "no more for 0.3 s" in error.message
    assert heard[-1] == Progress(completion_tokens=2, text=" upon")
    server.wait_for(Seen.COMPUTATION_ENDED)


def test_a_drip_that_never_falls_silent_ends_with_the_total(
    server: ScriptedServer, connect: Connect
) -> None:
    tokens = Gate()
    server.script(Reply(tokens=repeat("drop"), token_gate=tokens))

    def let_one_pass() -> bool:
        tokens.let_pass()
        return False

    provider = connect(TIMEOUT_SECONDS={"total": 0.5, "read": 0.4})
    with pytest.raises(ProviderError, match=r"no end within 0\.5 s") as error:
        list(provider.stream(REQUEST, should_stop=let_one_pass))

    assert error.value.outcome == "unknown"
    server.wait_for(Seen.COMPUTATION_ENDED)


def test_the_time_between_two_events_is_the_callers_own(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(away))
    monkeypatch.setattr("leaseq.providers.http.time", clock)
    events = connect(TIMEOUT_SECONDS={"read": 5, "total": 60}).stream(REQUEST, should_stop=go_on)
    next(events)
    away.append(30.0)

    assert isinstance(list(events)[-1], Finished)


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, id="a_date_that_has_passed"),
        pytest.param("soon", None, id="no_number"),
        pytest.param("-1", None, id="negative"),
        pytest.param("²", None, id="a_digit_that_is_no_number"),
        pytest.param(None, None, id="none"),
    ],
)
def test_a_limited_rate_says_how_long_to_wait(
    server: ScriptedServer,
    provider: StreamingProvider,
    retry_after: str | None,
    seconds: float | None,
) -> None:
    server.script(Refuse(status=429, retry_after=retry_after))

    error, _ = failed(provider)

    assert error.outcome == "known_failed"
    assert error.ids["retry_after"] == seconds


def test_a_date_to_wait_for_is_measured_by_the_servers_own_clock(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Refuse(status=429, retry_after="Tue, 01 Jan 2999 00:00:00 GMT"))

    error, _ = failed(provider)

    assert error.ids["retry_after"] > 365 * 24 * 3600


def test_words_of_the_provider_are_bounded_and_on_one_line(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Refuse(status=400, message="no\r\n\x1b[31m" + "x" * 10_000))

    error, _ = failed(provider)

    assert error.message.isprintable()
    assert error.message.startswith("the provider answered 400: no [31mxxx")
    assert len(error.message) < 600


@dataclass
class WordsWithoutEnd:
    """A refusal whose body never ends, or never comes."""

    pieces: Iterable[bytes]

    def play(self, wire: Wire) -> None:
        wire.note(Seen.REFUSED)
        wire.send_raw(b"HTTP/1.1 429 Slow Down\r\nRetry-After: 7\r\n\r\n")
        for piece in self.pieces:
            wire.send_raw(piece)
        wire.wait(Gate())


@pytest.mark.parametrize(
    "pieces",
    [pytest.param(repeat(b"x" * 999), id="endless"), pytest.param([b"slow"], id="never_over")],
)
def test_a_body_without_end_does_not_hide_the_status(
    server: ScriptedServer,
    provider: StreamingProvider,
    monkeypatch: pytest.MonkeyPatch,
    pieces: Iterable[bytes],
) -> None:
    monkeypatch.setattr("leaseq.providers.http.ERROR_BODY_S", 0.2)
    server.script(WordsWithoutEnd(pieces))

    error, _ = failed(provider)

    assert error.outcome == "known_failed"
    assert (error.ids["status"], error.ids["retry_after"]) == (429, 7.0)
    server.wait_for(Seen.DISCONNECTED)


class Compressed:
    """A stream in an encoding that was not asked for."""

    def play(self, wire: Wire) -> None:
        head = f"Content-Type: {STREAM_TYPE}\r\nContent-Encoding: gzip\r\nContent-Length: 0"
        wire.send_raw(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % head.encode())


def test_a_compressed_reply_is_not_unpacked(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Compressed())

    error, heard = failed(provider)

    assert (error.outcome, heard) == ("unknown", [])
    assert "compressed" in error.message


def test_a_secret_that_the_provider_repeats_is_not_shown(
    server: ScriptedServer, connect: Connect
) -> None:
    server.script(Refuse(status=401, message="wrong key s3cr3t, go away"))

    error, _ = failed(connect(API_KEY=lambda: "s3cr3t"))

    assert "wrong key [secret], go away" in error.message
