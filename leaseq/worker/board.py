"""The shared-memory board between a worker's main process and its pool (SPEC C4a).

One cell per pool process or thread, two halves per cell, one writer per half: the holder writes
what it holds, the parent (the heartbeat) what it knows of that lease. So `guard()` costs neither
I/O nor a lock, whether the pool was forked, spawned or is made of threads.
"""

import contextlib
import mmap
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Self

from leaseq.errors import LeaseqBug, Misconfigured
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief, Guard, Proof
from leaseq.vocabulary import Certainty, HolderReason
from leaseq.worker.cell import CELL_BYTES, Cell, CellView, Held, Told
from leaseq.worker.presence import ProcessIdentity, is_dead, own_identity

BOARD_VARIABLE = "LEASEQ_BOARD"
CELLS_MAX = 256

MAGIC = b"leaseqB1"
FILE_NAME = "board"
FOLDER_PREFIX = "leaseq-board-"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made below it is private
HEADER_BYTES = 512
# magic, cells; then the parent: pid, start ticks, boot id, node.
HEADER = struct.Struct("=8sqqq64s256s")

RELEASED = Belief(
    deadline=Deadline(0.0),
    doubt_at=0.0,
    certainty=Certainty.LOST,
    reason=HolderReason.RELEASED,
)


class Board:
    """A file of cells, mapped into the worker's main process and every process of its pool.

    Made by the parent, which names its path in the environment variable LEASEQ_BOARD and removes
    it at the end; a forked child may also use the object it inherited. Nothing is ever flushed:
    the board means nothing after its processes.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._mapped = mapped
        self._memory = memoryview(mapped)
        _, self.cells, pid, ticks, boot, node = HEADER.unpack_from(mapped)
        self.parent = ProcessIdentity(_text(node), _text(boot), pid, ticks)
        self._cells = [
            Cell(self._memory, HEADER_BYTES + index * CELL_BYTES, index=index)
            for index in range(self.cells)
        ]
        self._last_held: dict[int, tuple[int, Held | None]] = {}

    @property
    def parent_pid(self) -> int:
        """The pid of the process that made the board."""
        return self.parent.pid

    @classmethod
    def create(cls, path: Path, *, cells: int) -> Self:
        """Make a new board that only this user can open, with every cell empty.

        Raises Misconfigured when the number of cells cannot be, or the file cannot be made.
        """
        if not 1 <= cells <= CELLS_MAX:
            raise Misconfigured(
                f"a board has 1 to {CELLS_MAX} cells, not {cells}; set the worker's concurrency "
                f"to at most {CELLS_MAX} and start more workers for more"
            )
        size = HEADER_BYTES + cells * CELL_BYTES
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise Misconfigured(
                f"the board cannot be made at {path} ({error.strerror}); give it a new name in a "
                "folder that this user may write to"
            ) from error
        try:
            _allocate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            path.unlink()
            raise Misconfigured(
                f"{size} bytes of shared memory at {path} cannot be had ({error.strerror}); "
                "free some room there"
            ) from error
        finally:
            os.close(descriptor)
        own = own_identity()
        HEADER.pack_into(
            mapped, 0, MAGIC, cells, own.pid, own.start_ticks, own.boot_id.encode(),
            os.fsencode(own.node)[:255],
        )  # fmt: skip
        return cls(path, mapped)

    @classmethod
    def create_private(cls, *, cells: int) -> Self:
        """Make a board in a new folder that only this user can enter, in memory where there is.

        Boards of this user whose worker is provably gone are removed first, so that crashes do
        not fill the memory. Raises Misconfigured as `create` does.
        """
        home = _shared_memory()
        for folder in home.glob(f"{FOLDER_PREFIX}*"):
            _remove_abandoned(folder)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=home))
        try:
            return cls.create(folder / FILE_NAME, cells=cells)
        except Misconfigured:
            folder.rmdir()
            raise

    @classmethod
    def attach(cls, path: Path) -> Self:
        """Map a board that the parent made.

        Raises Misconfigured for a file that is not there, is no board of this version, belongs to
        another user or can be opened by others: whoever writes to it decides over leases.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise Misconfigured(
                f"the board {path} cannot be opened ({error.strerror}); it is made by the "
                f"worker's main process, which names it in {BOARD_VARIABLE}"
            ) from error
        try:
            about = os.fstat(descriptor)
            if not _is_private(about):
                raise Misconfigured(
                    f"the board {path} is not a file that this user alone can open; start the "
                    "worker again as one user, so that it makes a new board"
                )
            if about.st_size < HEADER_BYTES + CELL_BYTES:
                raise _not_a_board(path)
            mapped = mmap.mmap(descriptor, about.st_size)
        finally:
            os.close(descriptor)
        magic, cells = HEADER.unpack_from(mapped)[:2]
        if magic != MAGIC or about.st_size != HEADER_BYTES + cells * CELL_BYTES:
            mapped.close()
            raise _not_a_board(path)
        return cls(path, mapped)

    @classmethod
    def attach_from(cls, environ: Mapping[str, str]) -> Self:
        """Map the board that LEASEQ_BOARD names in `environ`. Raises Misconfigured."""
        path = environ.get(BOARD_VARIABLE)
        if not path:
            raise Misconfigured(
                f"{BOARD_VARIABLE} is not set, so this process has no board; leased tasks run in "
                "the pool of a worker whose Celery app has leaseq installed"
            )
        return cls.attach(Path(path))

    def cell(self, index: int) -> Cell:
        """Return one cell. Raises Misconfigured for a pool larger than the board."""
        if not 0 <= index < self.cells:
            raise Misconfigured(
                f"cell {index} is not on this board of {self.cells}; a pool that grows needs a "
                "board for its largest size"
            )
        return self._cells[index]

    def hold(
        self,
        index: int,
        *,
        pid: int,
        start_ticks: int,
        proof: Proof,
        ttl: timedelta,
        renew_every: timedelta,
        claimed_at: float,
        deadline: Deadline,
    ) -> None:
        """Say what this process holds in its cell, in place of whatever stood there.

        `claimed_at` is the boot clock as read before the claim was sent. Only the cell's own
        process or thread may call this. Raises Misconfigured for a cell that is not there.
        """
        self.cell(index).hold(
            Held(index, pid, start_ticks, proof, ttl, renew_every, claimed_at, deadline)
        )

    def release(self, index: int) -> None:
        """Say that this cell holds nothing any more; harmless when it does not."""
        self.cell(index).release()

    def holding(self) -> list[Held]:
        """Return what the pool holds now, by cell.

        A holder's half that cannot be read counts as last read: a live lease must not starve for
        it, and the authority refuses the renewal of one that has ended.
        """
        found = (self._held_or_last(cell) for cell in self._cells)
        return [held for held in found if held is not None]

    def _held_or_last(self, cell: Cell) -> Held | None:
        number, last = self._last_held.get(cell.index, (0, None))
        current = cell.of_holder.number
        if current == number:
            return last
        try:
            held = cell.held()
        except LeaseqBug:
            return last
        # The number from before the read: a newer record is then only read once more.
        self._last_held[cell.index] = (current, held)
        return held

    def publish(self, index: int, proof: Proof, belief: Belief, *, renewals: int) -> None:
        """Tell the holder of `proof` what to believe; any other holder in the cell ignores it.

        Only the parent may call this. Raises LeaseqBug for a reason that is not at most 32 ASCII
        characters, Misconfigured for a cell that is not there; the old word then stands.
        """
        self.cell(index).tell(Told(proof, belief, renewals))

    def view(self, index: int) -> CellView:
        """Read both halves of a cell. Raises LeaseqBug when one was damaged."""
        cell = self.cell(index)
        return CellView(cell.held(), cell.told())

    def close(self) -> None:
        """Unmap the board here; guards made on it must not be used after this."""
        for cell in self._cells:
            cell.of_holder.close()
            cell.of_parent.close()
        self._memory.release()
        self._mapped.close()

    def remove(self) -> None:
        """Delete the file, or the whole folder that `create_private` made; mapped cells live on.

        Does nothing in any process but the one that made the board, so that a forked child's
        clean-up never takes it from the others. Harmless when repeated.
        """
        if self.parent_pid != os.getpid():
            return
        if self.path.parent.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(self.path.parent, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


class BoardGuard:
    """The guard of one holder on the board: no I/O, no lock, a look at shared memory (SPEC C4).

    Made after `hold`. The parent's word counts where it speaks of this very lease and fence;
    until then the holder relies on its own claim. A cell given up, or taken by another lease,
    is a lost lease.
    """

    __slots__ = ("_cell", "_guard", "_last", "_proof")

    def __init__(self, board: Board, index: int, proof: Proof) -> None:
        self._cell = board.cell(index)
        self._proof = proof
        held = board.view(index).held
        first = held.first_belief() if held and held.proof == proof else RELEASED
        # The two halves' numbers and what was read at them; one value, so that threads of a task
        # never see the numbers of one read with the word of another.
        self._last = ((-1, -1), first)
        self._guard = Guard(proof, self.belief)

    def check(self) -> None:
        """Return when the lease is certainly valid now; raises as `owner.guard.Guard.check`."""
        self._guard.check(boot_seconds())

    def certainty(self) -> Certainty:
        """Say what the holder may believe now."""
        return self._guard.certainty(boot_seconds())

    def cancel_asked(self) -> bool:
        """Say whether a cancellation was heard of."""
        return self._guard.cancel_asked(boot_seconds())

    def belief(self) -> Belief:
        """Return the word that counts for this lease now: deadline, doubt, cancellation, reason."""
        numbers = (self._cell.of_holder.number, self._cell.of_parent.number)
        seen, last = self._last
        if numbers == seen:
            return last
        try:
            belief = self._read()
        except LeaseqBug:
            return _in_doubt(last)
        # The numbers from before the read: a newer record is then only read once more.
        self._last = (numbers, belief)
        return belief

    def _read(self) -> Belief:
        held = self._cell.held()
        if held is None or held.proof != self._proof:
            return RELEASED
        told = self._cell.told()
        if told is not None and told.proof == self._proof:
            return told.belief
        return held.first_belief()


def _in_doubt(last: Belief) -> Belief:
    """Keep the last word where no new one can be read, but never as a certain one."""
    if last.certainty is Certainty.LOST:
        return last
    return replace(last, certainty=Certainty.UNCERTAIN, reason=HolderReason.BOARD_UNREADABLE)


def _allocate(descriptor: int, size: int) -> None:
    """Claim the room now: a full file system must refuse here, not kill a process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _shared_memory() -> Path:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())


def _remove_abandoned(folder: Path) -> None:
    """Remove a board of this user whose parent is provably gone; leave all others alone."""
    path = folder / FILE_NAME
    with contextlib.suppress(OSError):
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        magic, _, pid, ticks, boot, node = HEADER.unpack_from(header)
        if magic == MAGIC and is_dead(ProcessIdentity(_text(node), _text(boot), pid, ticks)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_private(about: os.stat_result) -> bool:
    others = stat.S_IRWXG | stat.S_IRWXO
    return (
        stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & others
    )


def _not_a_board(path: Path) -> Misconfigured:
    return Misconfigured(
        f"{path} is not a board of this version of leaseq; restart the whole worker, so that its "
        "main process and its pool run the same version"
    )


def _text(field: bytes) -> str:
    return os.fsdecode(field.rstrip(b"\0"))
