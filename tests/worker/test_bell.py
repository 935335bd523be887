"""Doorbells and rings over a real broker: gathered, and never an error of the caller (SPEC D6)."""

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from pytest_django import Settings

from leaseq.services.ports import Doorbell
from leaseq.worker.bell import PASS_TASK, CeleryPorts
from project.demo.services import EmbeddedBroker, free_port
from tests.worker.conftest import until

QUIET_S = 0.5
CONTROL = "leaseq-control"
BELLS = [Doorbell(attempt_id=UUID(int=number), task="tests.t", queue="gpu") for number in (1, 2)]


class Post:
    """What lies in the broker's queues."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)

    def count(self, queue: str = CONTROL) -> int:
        return int(self.client.llen(queue))

    def messages(self, queue: str = CONTROL) -> list[dict[str, Any]]:
        """Return the messages, the oldest first."""
        return [json.loads(one) for one in reversed(self.client.lrange(queue, 0, -1))]

    def rings(self) -> list[str]:
        return [body_of(one)[1]["name"] for one in self.messages()]


def body_of(message: dict[str, Any]) -> Any:
    """Return the args, kwargs and extras of a message."""
    return json.loads(base64.b64decode(message["body"]))


@pytest.fixture
def quiet(settings: Settings) -> None:
    settings.LEASEQ = settings.LEASEQ | {"BELL_SECONDS": QUIET_S}


@pytest.fixture
def post(broker: EmbeddedBroker, quiet: None) -> Iterator[Post]:
    """An empty broker."""
    opened = Post(broker.url)
    opened.client.flushall()
    yield opened
    opened.client.close()


def app_of(url: str) -> Celery:
    return Celery("bells", broker=url, set_as_current=False)


@pytest.fixture
def bell(broker: EmbeddedBroker, post: Post) -> Iterator[CeleryPorts]:
    """A bell whose connection stands, so that a ring takes no time."""
    app = app_of(broker.url)
    ports = CeleryPorts(app)
    ports.ring("warm")
    post.client.flushall()
    yield ports
    until(lambda: not _timers(), what="the end of all gathering")
    app.close()


def _timers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


# -- rings -------------------------------------------------------------------------------------


def test_a_ring_is_sent_at_once(bell: CeleryPorts, post: Post) -> None:
    bell.ring("schedule")
    assert post.rings() == ["schedule"]
    (message,) = post.messages()
    assert message["headers"]["task"] == PASS_TASK
    assert message["headers"]["expires"] is not None
    assert message["headers"]["ignore_result"] is True


def test_a_burst_costs_two_messages_and_its_last_ring_is_not_lost(
    bell: CeleryPorts, post: Post
) -> None:
    for _ in range(50):
        bell.ring("schedule")
    assert post.rings() == ["schedule"]
    until(lambda: post.count() > 1, what="the trailing ring")
    until(lambda: not _timers(), what="the end of all gathering")
    assert post.rings() == ["schedule"] * 2


def test_each_pass_is_gathered_by_itself(bell: CeleryPorts, post: Post) -> None:
    for name in ("schedule", "settle", "schedule", "settle"):
        bell.ring(name)
    assert post.rings() == ["schedule", "settle"]
    until(lambda: post.count() == 4, what="both trailing rings")
    assert sorted(post.rings()) == ["schedule", "schedule", "settle", "settle"]


def test_after_the_quiet_the_next_burst_is_heard_at_once(bell: CeleryPorts, post: Post) -> None:
    bell.ring("schedule")
    bell.ring("schedule")
    until(lambda: post.count() == 2, what="the trailing ring")
    bell._rung_at["schedule"] -= QUIET_S
    bell.ring("schedule")
    assert post.count() == 3


FORKED = """
import os, sys
from leaseq.conf import settings
from leaseq.worker.bell import CeleryPorts
bell = CeleryPorts(None)
bell._pending.add("schedule")
bell._lock.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if not bell._pending and bell._lock.acquire(timeout=1) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_waits_for_no_timer_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# -- doorbells ---------------------------------------------------------------------------------


def test_a_doorbell_says_the_attempt_and_nothing_else(bell: CeleryPorts, post: Post) -> None:
    assert bell.publish(BELLS) == {}
    messages = post.messages("gpu")
    assert [one["headers"]["id"] for one in messages] == [str(one.attempt_id) for one in BELLS]
    assert {one["headers"]["task"] for one in messages} == {"tests.t"}
    assert [body_of(one)[:2] for one in messages] == [[[], {}]] * 2


# -- a broker that is away ---------------------------------------------------------------------


@pytest.fixture
def lost_bell(quiet: None) -> Iterator[CeleryPorts]:
    """A bell at whose broker's port nobody listens."""
    app = app_of(f"redis://127.0.0.1:{free_port()}/0")
    yield CeleryPorts(app)
    app.close()


def test_without_a_broker_a_ring_costs_a_log_line(
    lost_bell: CeleryPorts, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    lost_bell.ring("schedule")
    assert "no ring for pass schedule, the beat will do it" in caplog.text
    assert time.monotonic() - began < 3, "the caller waits for this"


def test_without_a_broker_each_doorbell_gets_its_error(lost_bell: CeleryPorts) -> None:
    errors = lost_bell.publish(BELLS)
    assert errors.keys() == {one.attempt_id for one in BELLS}
    assert all("OperationalError" in text for text in errors.values())


def test_a_broker_that_goes_away_later_is_no_error_either(
    quiet: None, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker() as own:
        app = app_of(own.url)
        bell = CeleryPorts(app)
        bell.ring("schedule")
        assert bell.publish(BELLS[:1]) == {}
        own.stop()
        bell.ring("settle")
        assert "no ring for pass settle" in caplog.text
        assert bell.publish(BELLS).keys() == {one.attempt_id for one in BELLS}
    app.close()
