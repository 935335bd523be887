"""The board within one process: what it holds, refuses and leaves behind (SPEC C4a)."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leaseq.errors import LeaseqBug, Misconfigured
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief
from leaseq.vocabulary import Certainty, HolderReason, RenewalRefusal
from leaseq.worker import board as board_module
from leaseq.worker.board import BOARD_VARIABLE, CELLS_MAX, Board, BoardGuard
from leaseq.worker.cell import CellView, Told
from tests.worker.board_claims import LATER, PROOF, hold, word


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "board"


@pytest.fixture
def board(path: Path) -> Iterator[Board]:
    made = Board.create(path, cells=4)
    yield made
    made.close()


# -- what is written is what is read -----------------------------------------------------------


def test_the_parent_reads_what_a_process_holds(board: Board) -> None:
    board.hold(
        2,
        pid=4242,
        start_ticks=99,
        proof=PROOF,
        ttl=timedelta(seconds=6),
        renew_every=timedelta(seconds=2.5),
        claimed_at=100.25,
        deadline=Deadline(105.75),
    )
    (held,) = board.holding()
    assert (held.index, held.pid, held.start_ticks, held.proof) == (2, 4242, 99, PROOF)
    assert (held.ttl, held.renew_every) == (timedelta(seconds=6), timedelta(seconds=2.5))
    assert (held.claimed_at, held.deadline) == (100.25, Deadline(105.75))
    assert board.view(2) == CellView(held, None)
    assert board.view(1) == CellView(None, None)


@pytest.mark.parametrize("certainty", Certainty)
@pytest.mark.parametrize("cancel", [False, True])
def test_the_holder_reads_what_the_parent_said(
    board: Board, certainty: Certainty, cancel: bool
) -> None:
    belief = Belief(
        deadline=Deadline(1.5),
        doubt_at=0.5,
        certainty=certainty,
        cancel_asked=cancel,
        reason="x" * 32,
    )
    board.publish(3, PROOF, belief, renewals=12)
    assert board.view(3) == CellView(None, Told(PROOF, belief, 12))


@pytest.mark.parametrize("reason", [*RenewalRefusal, *HolderReason])
def test_every_reason_fits_on_the_board(board: Board, reason: str) -> None:
    board.publish(0, PROOF, replace(word(), reason=reason), renewals=0)
    told = board.view(0).told
    assert told is not None
    assert told.belief.reason == reason


def test_holding_follows_claims_and_releases(board: Board) -> None:
    hold(board, 0)
    hold(board, 3, LATER)
    assert [held.index for held in board.holding()] == [0, 3]
    board.release(0)
    assert [held.proof for held in board.holding()] == [LATER]
    hold(board, 3, PROOF)
    assert [held.proof for held in board.holding()] == [PROOF]
    board.release(3)
    board.release(3)
    assert board.holding() == []


# -- what is refused ---------------------------------------------------------------------------


def publish_long_reason(board: Board) -> None:
    board.publish(0, PROOF, replace(word(), reason="x" * 33), renewals=9)


def publish_foreign_reason(board: Board) -> None:
    board.publish(0, PROOF, replace(word(), reason="é"), renewals=9)


def publish_huge_fence(board: Board) -> None:
    board.publish(0, PROOF._replace(fence=2**63), word(), renewals=9)


def hold_huge_fence(board: Board) -> None:
    hold(board, 0, PROOF._replace(fence=2**63))


@pytest.mark.parametrize(
    "write",
    [publish_long_reason, publish_foreign_reason, publish_huge_fence, hold_huge_fence],
)
def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(
    board: Board, write: Callable[[Board], None]
) -> None:
    hold(board)
    board.publish(0, PROOF, word(), renewals=1)
    before = board.view(0)
    with pytest.raises(LeaseqBug):
        write(board)
    assert board.view(0) == before


@pytest.mark.parametrize("index", [-1, 4, 1000])
def test_a_cell_that_is_not_there_is_refused(board: Board, index: int) -> None:
    with pytest.raises(Misconfigured, match="largest size"):
        hold(board, index)
    with pytest.raises(Misconfigured, match="largest size"):
        board.publish(index, PROOF, word(), renewals=0)
    assert board.holding() == []


@pytest.mark.parametrize("cells", [-1, 0, CELLS_MAX + 1])
def test_a_board_of_an_impossible_size_is_refused(path: Path, cells: int) -> None:
    with pytest.raises(Misconfigured, match=f"at most {CELLS_MAX}"):
        Board.create(path, cells=cells)
    assert not path.exists()


@pytest.mark.parametrize("cells", [1, CELLS_MAX])
def test_the_last_cell_works(path: Path, cells: int) -> None:
    board = Board.create(path, cells=cells)
    hold(board, cells - 1)
    assert [held.index for held in board.holding()] == [cells - 1]
    board.close()


# -- the file ----------------------------------------------------------------------------------


def test_a_board_is_for_this_user_alone(board: Board) -> None:
    assert stat.S_IMODE(board.path.stat().st_mode) == 0o600


def test_a_private_board_stands_in_a_private_folder_and_leaves_nothing() -> None:
    board = Board.create_private(cells=2)
    folder = board.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "beside").write_text("what else the worker told its pool")
    board.remove()
    board.remove()
    assert not folder.exists()
    hold(board)
    assert len(board.holding()) == 1
    board.close()


def test_only_the_process_that_made_a_board_removes_it(
    board: Board, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: board.parent_pid + 1)
    board.remove()
    assert path.exists()
    monkeypatch.undo()
    board.remove()
    assert not path.exists()


def test_an_existing_file_is_not_taken_over(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(Misconfigured, match="cannot be made"):
        Board.create(path, cells=1)
    assert path.read_text() == "mine"


def test_a_full_memory_is_said_at_once_and_leaves_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board_module, "_allocate", full)
    with pytest.raises(Misconfigured, match="No space left"):
        Board.create(path, cells=1)
    assert not path.exists()


def test_an_attached_board_shows_the_same_cells(board: Board, path: Path) -> None:
    hold(board, 1)
    other = Board.attach_from({BOARD_VARIABLE: str(path)})
    assert other.holding() == board.holding()
    assert other.parent == board.parent
    assert other.parent_pid == os.getpid()
    other.publish(1, PROOF, word(certainty=Certainty.LOST), renewals=0)
    assert BoardGuard(board, 1, PROOF).certainty() is Certainty.LOST
    other.close()


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def of_another_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"leaseqB9")


def open_to_others(path: Path) -> None:
    path.chmod(0o660)


def missing(path: Path) -> None:
    path.unlink()


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (shortened, "restart the whole worker"),
        (emptied, "restart the whole worker"),
        (of_another_version, "restart the whole worker"),
        (open_to_others, "start the worker again"),
        (missing, BOARD_VARIABLE),
        (a_link, BOARD_VARIABLE),
    ],
)
def test_a_file_that_is_no_sound_board_is_refused(
    board: Board, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(board.path)
    with pytest.raises(Misconfigured, match=says):
        Board.attach(board.path)


@pytest.mark.parametrize("environ", [{}, {BOARD_VARIABLE: ""}])
def test_a_process_without_a_board_is_told_why(environ: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="is not set"):
        Board.attach_from(environ)


MAKE_AND_DIE = """
import os, signal
from leaseq.worker.board import Board
path = Board.create_private(cells=1).path
path.with_name("beside").write_text("what else the worker told its pool")
print(path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_boards_of_killed_workers_are_removed_and_living_ones_are_not() -> None:
    died = subprocess.run([sys.executable, "-c", MAKE_AND_DIE], capture_output=True, check=False)
    abandoned = Path(died.stdout.decode().strip())
    assert abandoned.exists()
    living = Board.create_private(cells=1)
    assert not abandoned.parent.exists()
    another = Board.create_private(cells=1)
    assert living.path.exists()
    for made in (living, another):
        made.remove()
        made.close()
