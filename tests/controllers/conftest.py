"""What tests of passes share: a clock that can be set, and a way to run two at once."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from django.db import connections
from pytest_django import Settings

from leaseq.controllers import serve
from leaseq.controllers.base import PassSummary
from leaseq.db import clock
from leaseq.models import Job, Price
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.testing.provider import (
    ScriptedServer,
)
from tests.services.stages import claim, queue_up

DEADLINE_SECONDS = 60
INSTANT = timedelta(microseconds=1)
SetClock = Callable[[datetime], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Stop the authority's clock at a moment, for the decisions made through this process."""

    def stop_at(moment: datetime) -> None:
        monkeypatch.setattr(clock, "read", lambda: moment)

    return stop_at


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Let the authority's clock run ahead by a span, for the decisions of this process."""
    real = clock.read

    def run_ahead(span: timedelta) -> None:
        monkeypatch.setattr(clock, "read", lambda: real() + span)

    return run_ahead


def run_twice_at_once(run_pass: Callable[[], PassSummary]) -> list[PassSummary]:
    """Run a pass in two threads that start together, each on its own connection."""
    barrier = threading.Barrier(2, timeout=DEADLINE_SECONDS)
    summaries: list[PassSummary] = []
    failures: list[BaseException] = []

    def one() -> None:
        try:
            barrier.wait()
            summaries.append(run_pass())
        except BaseException as failure:  # noqa: BLE001 - shown by the test that waits
            failures.append(failure)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not failures
    assert len(summaries) == 2
    return summaries


@pytest.fixture
def server(settings: Settings) -> Iterator[ScriptedServer]:
    """The provider `private`, as the settings name it."""
    with ScriptedServer() as scripted:
        private = {
            "ADAPTER": "openai_compatible",
            "BASE_URL": scripted.base_url,
            "MODEL": "small",
        }
        settings.LEASEQ = settings.LEASEQ | {"PROVIDERS": {"private": private}}
        serve.providers.cache_clear()
        yield scripted
        serve.providers.cache_clear()


@pytest.fixture
def sending(
    server: ScriptedServer, admit: Callable[..., Job], worker: Registered, prices: list[Price]
) -> Claimed:
    """A claimed attempt of a job for the provider `private`."""
    admit(provider="private")
    (job,) = queue_up()
    return claim(job, worker)
