"""The guard of a holder on the board (SPEC C3, C4, C4a)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from timeit import repeat
from uuid import UUID

import pytest

from leaseq.errors import CancelAsked, LeaseqBug, OwnershipLost, OwnershipUncertain
from leaseq.owner.guard import Belief, Proof
from leaseq.vocabulary import Certainty, HolderReason
from leaseq.worker.board import Board, BoardGuard
from leaseq.worker.register import Register
from tests.worker.board_claims import LATER, PROOF, hold, word


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(tmp_path / "board", cells=4)
    yield made
    made.close()


def test_until_the_parent_speaks_the_claim_counts(board: Board) -> None:
    hold(board)
    guard = BoardGuard(board, 0, PROOF)
    guard.check()
    assert guard.certainty() is Certainty.CERTAIN
    held = board.view(0).held
    assert held is not None
    assert guard.belief().deadline == held.deadline
    assert guard.belief().doubt_at == held.claimed_at + 20


def test_a_claim_alone_does_not_outlive_its_own_deadline(board: Board) -> None:
    hold(board, lasts=0.0)
    with pytest.raises(OwnershipLost):
        BoardGuard(board, 0, PROOF).check()


@pytest.mark.parametrize(
    ("belief", "error"),
    [
        (lambda: word(certainty=Certainty.LOST), OwnershipLost),
        (lambda: word(lasts=0.0), OwnershipLost),
        (lambda: word(certainty=Certainty.UNCERTAIN), OwnershipUncertain),
        (lambda: replace(word(), doubt_at=0.0), OwnershipUncertain),
        (lambda: replace(word(), cancel_asked=True), CancelAsked),
    ],
    ids=["lost", "deadline passed", "uncertain", "answer overdue", "cancel asked"],
)
def test_the_word_of_the_parent_reaches_a_guard_in_use(
    board: Board, belief: Callable[[], Belief], error: type[Exception]
) -> None:
    hold(board)
    guard = BoardGuard(board, 0, PROOF)
    guard.check()
    board.publish(0, PROOF, belief(), renewals=0)
    with pytest.raises(error) as raised:
        guard.check()
    assert type(raised.value) is error


def test_renewals_carry_a_guard_past_its_first_deadline(board: Board) -> None:
    hold(board, lasts=0.0)
    board.publish(0, PROOF, word(), renewals=1)
    BoardGuard(board, 0, PROOF).check()


def test_doubt_ends_with_the_next_answer_and_loss_does_not(board: Board) -> None:
    hold(board)
    guard = BoardGuard(board, 0, PROOF)
    board.publish(0, PROOF, word(certainty=Certainty.UNCERTAIN), renewals=0)
    assert guard.certainty() is Certainty.UNCERTAIN
    board.publish(0, PROOF, word(), renewals=1)
    assert guard.certainty() is Certainty.CERTAIN
    board.publish(0, PROOF, word(certainty=Certainty.LOST), renewals=1)
    assert guard.certainty() is Certainty.LOST
    board.publish(0, PROOF, word(), renewals=2)
    assert guard.certainty() is Certainty.LOST


@pytest.mark.parametrize(
    "other",
    [
        PROOF._replace(fence=8),
        PROOF._replace(fence_epoch=2),
        PROOF._replace(lease_id=UUID(int=9)),
        PROOF._replace(attempt_id=UUID(int=9)),
    ],
    ids=["fence", "epoch", "lease", "attempt"],
)
def test_a_word_about_another_lease_or_fence_is_not_ours(board: Board, other: Proof) -> None:
    hold(board)
    guard = BoardGuard(board, 0, PROOF)
    board.publish(0, other, word(certainty=Certainty.LOST), renewals=0)
    guard.check()


def test_an_old_word_gives_a_later_lease_no_time(board: Board) -> None:
    hold(board)
    board.publish(0, PROOF, word(lasts=3600.0), renewals=5)
    hold(board, 0, LATER, lasts=0.0)
    assert BoardGuard(board, 0, LATER).certainty() is Certainty.LOST


@pytest.mark.parametrize("take", [lambda board: board.release(0), lambda b: hold(b, 0, LATER)])
def test_a_cell_given_up_or_taken_is_a_lost_lease(
    board: Board, take: Callable[[Board], None]
) -> None:
    hold(board)
    board.publish(0, PROOF, word(), renewals=1)
    guard = BoardGuard(board, 0, PROOF)
    guard.check()
    take(board)
    with pytest.raises(OwnershipLost) as raised:
        guard.check()
    assert raised.value.ids["reason"] == HolderReason.RELEASED
    hold(board)
    assert guard.certainty() is Certainty.LOST


def test_a_guard_on_an_empty_cell_is_lost(board: Board) -> None:
    assert BoardGuard(board, 0, PROOF).certainty() is Certainty.LOST


def test_a_guard_works_on_when_the_file_is_gone(board: Board) -> None:
    hold(board)
    guard = BoardGuard(board, 0, PROOF)
    board.path.unlink()
    board.publish(0, PROOF, replace(word(), cancel_asked=True), renewals=0)
    assert guard.cancel_asked()


def test_a_check_takes_less_than_five_microseconds(board: Board) -> None:
    hold(board)
    board.publish(0, PROOF, word(), renewals=1)
    guard = BoardGuard(board, 0, PROOF)
    # The best of many short runs: what the code costs, not what else the machine does.
    assert min(repeat(guard.check, number=200, repeat=50)) / 200 < 5e-6


def test_a_damaged_parents_half_is_doubt_until_it_is_written_again(board: Board) -> None:
    hold(board)
    board.publish(0, PROOF, word(), renewals=1)
    guard = BoardGuard(board, 0, PROOF)
    guard.check()
    board.publish(0, PROOF, word(), renewals=2)
    spoil(board.cell(0).of_parent)
    with pytest.raises(OwnershipUncertain) as raised:
        guard.check()
    assert raised.value.ids["reason"] == HolderReason.BOARD_UNREADABLE
    with pytest.raises(LeaseqBug):
        board.view(0)
    board.publish(0, PROOF, word(), renewals=3)
    guard.check()


def test_a_damaged_holders_half_does_not_starve_a_live_lease(board: Board) -> None:
    hold(board)
    before = board.holding()
    hold(board, 0, LATER)
    spoil(board.cell(0).of_holder)
    assert board.holding() == before
    board.release(0)
    assert board.holding() == []


def spoil(register: Register) -> None:
    """Overwrite the copy that counts, as only a stray write could."""
    copy = register._copies[register.number & 1]
    copy[20:28] = bytes(255 - byte for byte in copy[20:28])
