"""What a worker's main process tells its pool: the board, and which slot each process has.

Both lie in one private folder whose path the environment carries, so that a forked and a spawned
pool process find them alike (SPEC C4a).
"""

import atexit
import json
import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID

from billiard.process import current_process

from leaseq.errors import Misconfigured
from leaseq.worker import slots
from leaseq.worker.board import BOARD_VARIABLE, CELLS_MAX, Board
from leaseq.worker.presence import die_with_parent

SEAT_FILE = "seat.json"


@dataclass(frozen=True, slots=True)
class Seat:
    """The incarnation that this pool belongs to, and its slots by the index of the process."""

    worker_id: UUID
    slot_ids: list[int]
    pool: str


def prepare(**_signal: object) -> None:
    """Make the board before the pool is made; runs in a worker's main process (worker_init)."""
    os.environ[BOARD_VARIABLE] = str(Board.create_private(cells=CELLS_MAX).path)
    board.cache_clear()
    atexit.register(clear_away)
    os.environ[slots.DEVICES_VARIABLE] = ",".join(slots.find_devices())


def settle_in(**_signal: object) -> None:
    """Pin the device of a new pool process and tie it to its parent (worker_process_init)."""
    if BOARD_VARIABLE not in os.environ:
        return
    index = getattr(current_process(), "index", None)
    if index is None:
        return
    slots.pin(index)
    die_with_parent(parent_pid=board().parent_pid)


@cache
def board() -> Board:
    """Return the board of this worker, mapped once a process."""
    return Board.attach_from(os.environ)


def write(seat: Seat) -> None:
    """Tell the pool its incarnation and slots, in one rename."""
    path = _seat_path()
    draft = path.with_suffix(".draft")
    draft.write_text(
        json.dumps({"worker_id": str(seat.worker_id), "slot_ids": seat.slot_ids, "pool": seat.pool})
    )
    draft.replace(path)


def read() -> Seat:
    """Return what the main process last wrote; raises Misconfigured where it wrote nothing.

    Also where this process belongs to no worker whose app has leaseq installed.
    """
    try:
        told = json.loads(_seat_path().read_text())
    except FileNotFoundError as error:
        raise Misconfigured(
            "this worker offers no slots, so it runs no leased task; start it with -Q and a queue "
            "other than the control queue"
        ) from error
    return Seat(UUID(told["worker_id"]), told["slot_ids"], told["pool"])


def clear_away() -> None:
    """Remove the folder; does nothing in any process but the one that made it."""
    shared = board()
    if shared.parent_pid == os.getpid():
        _seat_path().unlink(missing_ok=True)
        shared.remove()


def _seat_path() -> Path:
    return board().path.with_name(SEAT_FILE)


_taken: set[int] = set()
_taking = threading.Lock()


def take_index(seat: Seat) -> int:
    """Return the cell and slot of this process, or a free one for this thread.

    Raises Misconfigured where more tasks run at once than there are slots.
    """
    index = getattr(current_process(), "index", None)
    if seat.pool == "prefork" and index is not None:
        if index >= len(seat.slot_ids):
            raise Misconfigured(
                f"pool process {index} has no slot, for this worker offers {len(seat.slot_ids)}; a "
                "pool cannot grow past what the worker was started with: use --autoscale, or start "
                "another worker"
            )
        return int(index)
    with _taking:
        free = [one for one in range(len(seat.slot_ids)) if one not in _taken]
        if not free:
            raise Misconfigured("more leased tasks run at once than this worker has slots")
        _taken.add(free[0])
        return free[0]


def give_back(index: int) -> None:
    """Free the cell for the next task of a threads pool; harmless in others."""
    with _taking:
        _taken.discard(index)
