"""What the private-serving adapter says of a stream that goes as it should."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leaseq.errors import Misconfigured, ProviderError
from leaseq.providers.base import (
    Accepted,
    Finished,
    Progress,
    Started,
    StreamingProvider,
    Usage,
)
from leaseq.testing.provider import Gate, Raw, Reply, ScriptedServer, Seen
from tests.providers.conftest import REQUEST, Connect, go_on


def test_a_stream_tells_acceptance_start_progress_and_completion_apart(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(tokens=["Once", " upon"], prompt_tokens=11))

    assert list(provider.stream(REQUEST, should_stop=go_on)) == [
        Accepted(provider_request_id=None),
        Started(),
        Progress(completion_tokens=1, text="Once"),
        Progress(completion_tokens=2, text=" upon"),
        Finished(
            text="Once upon",
            usage=Usage(prompt_tokens=11, completion_tokens=2),
            finish_reason="stop",
            provider_request_id="chatcmpl-1",
        ),
    ]
    assert server.submits == {"key-1": 1}
    assert server.running == 0


def test_acceptance_is_told_while_nothing_is_computed_yet(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    tokens = Gate()
    server.script(Reply(token_gate=tokens))
    events = provider.stream(REQUEST, should_stop=go_on)

    assert next(events) == Accepted(provider_request_id=None)
    assert Seen.COMPUTATION_STARTED not in {entry.seen for entry in server.log}

    tokens.let_pass()
    assert next(events) == Started()
    tokens.open()
    assert isinstance(list(events)[-1], Finished)


def test_acceptance_is_not_told_while_the_server_queues_the_request(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    headers = Gate()
    server.script(Reply(headers_gate=headers))
    asked: list[bool] = []

    def should_stop() -> bool:
        arrived = Seen.ARRIVED in {entry.seen for entry in server.log}
        asked.append(arrived)
        if asked.count(True) == 2:
            headers.open()
        return False

    assert next(iter(provider.stream(REQUEST, should_stop=should_stop))) == Accepted(
        provider_request_id=None
    )
    assert asked.count(True) >= 2


def test_each_piece_comes_as_it_is_computed(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    tokens = Gate()
    server.script(Reply(tokens=["a", "b"], token_gate=tokens))
    events = provider.stream(REQUEST, should_stop=go_on)
    tokens.let_pass()
    heard = [next(events) for _ in range(3)]

    assert heard[-1] == Progress(completion_tokens=1, text="a")
    assert server.running == 1
    tokens.open()
    assert isinstance(list(events)[-1], Finished)


def test_a_reply_without_usage_is_finished_and_unpriced(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(tokens=["free?"], has_usage=False))

    last = list(provider.stream(REQUEST, should_stop=go_on))[-1]

    assert isinstance(last, Finished)
    assert (last.text, last.usage) == ("free?", None)


def test_a_reply_without_any_text_has_started_all_the_same(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    server.script(Reply(tokens=[]))

    events = list(provider.stream(REQUEST, should_stop=go_on))

    assert [type(event) for event in events] == [Accepted, Started, Finished]
    assert events[-1] == Finished(
        text="",
        usage=Usage(prompt_tokens=7, completion_tokens=0),
        finish_reason="stop",
        provider_request_id="chatcmpl-1",
    )


def chunk(**delta: Any) -> bytes:
    found = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    return b"data: " + json.dumps(found).encode() + b"\n\n"


TOLD = (
    b'data: {"choices": [{"delta": {"content": " xyz"}}], '
    b'"usage": {"prompt_tokens": 1, "completion_tokens": 4}}\n\n'
)
END = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("pieces", "text", "tokens"),
    [
        pytest.param([chunk(content=" x"), END], "Once x", 2, id="plain"),
        pytest.param([b": still here\n\n", END], "Once", 1, id="a_comment_is_no_token"),
        pytest.param([b"event: note\nid: 4\n\n", END], "Once", 1, id="other_fields"),
        pytest.param([chunk(content=" x").replace(b"\n", b"\r\n"), END], "Once x", 2, id="crlf"),
        pytest.param([*map(bytes, zip(chunk(content=" x"), strict=True)), END], "Once x", 2,
                     id="byte_by_byte"),
        pytest.param([chunk(content=" x") * 3 + END], "Once x x x", 4, id="many_in_one_piece"),
        pytest.param([chunk(reasoning_content="hm"), END], "Once", 2, id="thought_is_computed"),
        pytest.param([chunk(content="\x00\ud800"), END], "Once\ufffd\ufffd", 2,
                     id="what_no_database_stores"),
        pytest.param([chunk(content=""), chunk(content=None), END], "Once", 1, id="empty"),
        pytest.param([TOLD, END], "Once xyz", 4, id="several_tokens_in_a_chunk_that_tells"),
        pytest.param([b'data: {"choices":\ndata: []}\n\n', END], "Once", 1, id="two_data_lines"),
        pytest.param([b'data: {"choices":\n: hm\ndata: []}\n\n', END], "Once", 1,
                     id="a_comment_inside_an_event"),
    ],
)  # fmt: skip
def test_chunks_are_read_however_they_are_cut(
    server: ScriptedServer,
    provider: StreamingProvider,
    pieces: list[bytes],
    text: str,
    tokens: int,
) -> None:
    server.script(Raw(pieces=pieces))

    *before, last = provider.stream(REQUEST, should_stop=go_on)

    assert isinstance(last, Finished)
    assert last.text == text
    counted = [event.completion_tokens for event in before if isinstance(event, Progress)]
    assert counted[-1] == tokens


def test_the_body_is_known_before_it_is_sent(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    body = provider.body(REQUEST)
    shuffled = replace(REQUEST, payload=dict(reversed(list(REQUEST.payload.items()))))

    list(provider.stream(REQUEST, should_stop=go_on))

    assert server.log[0].body_digest == hashlib.sha256(body).hexdigest()
    assert provider.body(shuffled) == body
    assert json.loads(body) == {
        **REQUEST.payload,
        "model": "small",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"in": found}
    return found


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"model": "other"}, id="model"),
        pytest.param({"stream": False}, id="stream"),
        pytest.param({"stream_options": {}}, id="stream_options"),
        pytest.param({"n": 2}, id="several_answers"),
        pytest.param({"messages": []}, id="no_messages"),
        pytest.param({"tools": []}, id="tools"),
        pytest.param({"temperature": float("nan")}, id="nan"),
        pytest.param({"messages": {1, 2}}, id="not_json"),
        pytest.param(nested(100_000), id="too_deep"),
    ],
)
def test_a_payload_that_cannot_be_carried_is_not_sent(
    server: ScriptedServer, provider: StreamingProvider, payload: dict[str, Any]
) -> None:
    request = replace(REQUEST, payload=payload)

    with pytest.raises(ProviderError, match="nothing was sent") as refused:
        list(provider.stream(request, should_stop=go_on))

    assert refused.value.outcome == "known_failed"
    assert refused.value.ids == {"provider": "private", "request_id": "request-1"}
    assert server.log == ()


def test_request_and_key_are_named_to_the_server(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    list(provider.stream(REQUEST, should_stop=go_on))

    arrived = server.wait_for(Seen.ARRIVED, key="key-1")
    assert (arrived.request_id, arrived.authorization) == ("request-1", "")


def test_a_proxy_named_by_the_environment_is_not_used(
    server: ScriptedServer, provider: StreamingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert isinstance(list(provider.stream(REQUEST, should_stop=go_on))[-1], Finished)
    assert server.submits == {"key-1": 1}


def test_a_key_from_the_environment_is_read_anew_for_each_request(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = connect(API_KEY={"env": "PRIVATE_KEY"})
    for secret in ("first", "second"):
        monkeypatch.setenv("PRIVATE_KEY", secret)
        list(provider.stream(REQUEST, should_stop=go_on))

    sent = [entry.authorization for entry in server.log if entry.seen is Seen.ARRIVED]
    assert sent == ["Bearer first", "Bearer second"]


def test_a_key_from_a_callable_is_sent(server: ScriptedServer, connect: Connect) -> None:
    list(connect(API_KEY=lambda: "from-a-vault").stream(REQUEST, should_stop=go_on))

    assert server.log[0].authorization == "Bearer from-a-vault"


@pytest.mark.parametrize(
    "fetch",
    [
        pytest.param(lambda: "", id="empty"),
        pytest.param(lambda: None, id="none"),
        pytest.param(lambda: "two\r\nlines", id="line_break"),
        pytest.param(lambda: " padded", id="padded"),
        pytest.param(lambda: "schlüssel", id="not_ascii"),
    ],
)
def test_a_key_that_no_header_can_carry_is_not_sent_and_not_shown(
    server: ScriptedServer, connect: Connect, fetch: Callable[[], Any]
) -> None:
    with pytest.raises(Misconfigured, match="'API_KEY'") as refused:
        list(connect(API_KEY=fetch).stream(REQUEST, should_stop=go_on))

    assert server.log == ()
    assert "padded" not in str(refused.value)
    assert "lines" not in str(refused.value)


def test_a_key_missing_from_the_environment_is_named(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)

    with pytest.raises(Misconfigured, match="'NO_SUCH_KEY'"):
        list(connect(API_KEY={"env": "NO_SUCH_KEY"}).stream(REQUEST, should_stop=go_on))

    assert server.log == ()


def test_the_adapter_declares_that_work_ends_with_its_connection(
    server: ScriptedServer, provider: StreamingProvider
) -> None:
    assert provider.capabilities.ends_with_connection
    assert provider.endpoint == f"{server.url}/v1/chat/completions"
    assert (provider.name, provider.model) == ("private", "small")
