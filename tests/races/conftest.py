"""Other sessions: each a thread with a connection of its own, doing one act after another."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection, connections

from leaseq.db.transactions import atomic

DEADLINE_SECONDS = 20
T = TypeVar("T")
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


class Session:
    """A session at the database; its acts may stand in one transaction that it leaves open."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._block = atomic()

    def start(self, act: Callable[[], T]) -> "Future[T]":
        """Do this after what was started before, and do not wait for it."""
        return self._thread.submit(act)

    def do(self, act: Callable[[], T]) -> T:
        """Do this and return what it returns, or raise what it raises."""
        return self.start(act).result(DEADLINE_SECONDS)

    def begin(self) -> None:
        """Open a transaction."""
        self.do(self._block.__enter__)

    def commit(self) -> None:
        """Commit it."""
        self.do(lambda: self._block.__exit__(None, None, None))

    def roll_back(self) -> None:
        """Roll it back, as an error in the caller's block would."""
        error = RuntimeError("the caller's block fails")
        self.do(lambda: self._block.__exit__(RuntimeError, error, None))

    def close(self) -> None:
        """Close the connection and end the thread."""
        self.do(connections.close_all)
        self._thread.shutdown()


@pytest.fixture
def first(transactional_db: None) -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


@pytest.fixture
def second(transactional_db: None) -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


def until_waiting(sessions: int = 1) -> None:
    """Return once this many sessions wait for a lock that another one holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    tick = threading.Event()
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(WAITING)
            row = cursor.fetchone()
        if row is not None and row[0] >= sessions:
            return
        tick.wait(0.005)
    pytest.fail(f"{sessions} sessions should wait for a lock, and do not")


def at_once(*acts: Callable[[], T]) -> list[T | Exception]:
    """Do all acts at once, each in a session of its own, and return what came of each."""
    barrier = threading.Barrier(len(acts))

    def meet(act: Callable[[], T]) -> T | Exception:
        try:
            barrier.wait(DEADLINE_SECONDS)
            return act()
        except Exception as error:  # noqa: BLE001 - what an act raises is what came of it
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(acts)) as threads:
        return [one.result(DEADLINE_SECONDS) for one in [threads.submit(meet, a) for a in acts]]
