"""A worker's main process and one thread of its pool, both played by the test's own process."""

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection, connections

from leaseq.services.workers import Registered
from leaseq.worker import seats, slots
from leaseq.worker.board import BOARD_VARIABLE
from leaseq.worker.seats import Seat
from project.demo.services import free_port

T = TypeVar("T")
DEADLINE_SECONDS = 20.0


@pytest.fixture
def seat(worker: Registered, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seat]:
    """A board, and the two slots of a registered worker with a threads pool."""
    for variable in (BOARD_VARIABLE, slots.DEVICES_VARIABLE):
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(atexit, "register", lambda _act: None)
    monkeypatch.setattr(slots, "find_devices", list)
    seats.prepare()
    board = seats.board()
    taken = Seat(worker.worker_id, worker.slot_ids, "threads")
    seats.write(taken)
    yield taken
    seats.clear_away()
    board.close()
    seats.board.cache_clear()


@pytest.fixture
def without_database(db: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], T]], T]:
    """Do something where nothing listens at the database's port.

    In a thread, whose connection is a new one; the test keeps its own, to look what was stored.
    """

    def do(act: Callable[[], T]) -> T:
        monkeypatch.setitem(connection.settings_dict, "PORT", str(free_port()))

        def act_and_close() -> T:
            try:
                return act()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(act_and_close).result(DEADLINE_SECONDS)

    return do


def until(look: Callable[[], bool], *, what: str) -> None:
    """Return once this is so; fails after the deadline."""
    tick, spent = threading.Event(), 0.0
    while not look():
        if spent > DEADLINE_SECONDS:
            pytest.fail(f"not within {DEADLINE_SECONDS:g} s: {what}")
        tick.wait(0.01)
        spent += 0.01
