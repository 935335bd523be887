"""A scripted server, and the real adapter pointed at it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leaseq.providers.base import InferenceRequest, StreamingProvider
from leaseq.providers.registry import build_providers
from leaseq.testing.provider import ScriptedServer

Connect = Callable[..., StreamingProvider]

REQUEST = InferenceRequest(
    request_id="request-1",
    idempotency_key="key-1",
    model="small",
    payload={"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 16},
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def connect(server: ScriptedServer) -> Connect:
    """Build the adapter as settings would, any of which a test may replace."""

    def build(**config: Any) -> StreamingProvider:
        given = {
            "ADAPTER": "openai_compatible",
            "BASE_URL": server.base_url,
            "MODEL": "small",
            **config,
        }
        provider = build_providers({"private": given})["private"]
        assert isinstance(provider, StreamingProvider)
        return provider

    return build


@pytest.fixture
def provider(connect: Connect) -> StreamingProvider:
    return connect()


def go_on() -> bool:
    """The `should_stop` of a caller who wants all of it."""
    return False
