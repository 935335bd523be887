"""A worker's main process and one thread of its pool, both played by the test's own process."""

import atexit
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection, connections

from leaseq.owner import clock as boot_clock
from leaseq.services.workers import Registered
from leaseq.worker import board as board_module
from leaseq.worker import heartbeat as heartbeat_module
from leaseq.worker import seats, slots
from leaseq.worker.board import BOARD_VARIABLE, Board
from leaseq.worker.heartbeat import Heartbeat
from leaseq.worker.seats import Seat
from project.demo.services import free_port
from tests.worker.beats import Renewals, heart

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


@pytest.fixture
def board(seat: Seat) -> Board:
    return seats.board()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the holder's clock on, for the heartbeat and the guards alike."""
    ahead = [0.0]

    def read() -> float:
        return boot_clock.boot_seconds() + ahead[0]

    for module in (heartbeat_module, board_module):
        monkeypatch.setattr(module, "boot_seconds", read)

    def move(seconds: float) -> None:
        ahead[0] += seconds

    return move


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that plays one of the pool, until its input ends."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.fixture
def beating(board: Board, worker: Registered) -> Heartbeat:
    """The heartbeat of a worker with a prefork pool, beaten by hand."""
    return heart(board, worker)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    return Renewals(monkeypatch)
