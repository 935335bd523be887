"""The heartbeat by hand: it renews, and tells the pool how it stands (SPEC C, D3)."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from leaseq.errors import CancelAsked, OwnershipLost, OwnershipUncertain
from leaseq.models import Job
from leaseq.models import Lease as LeaseRow
from leaseq.owner.clock import boot_seconds
from leaseq.services import attempts, cancellation
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.vocabulary import Certainty, EndReason, RenewalRefusal
from leaseq.worker import seats
from leaseq.worker.board import Board
from leaseq.worker.heartbeat import Heartbeat
from tests.services.photograph import photograph
from tests.services.stages import claim, queue_up
from tests.worker.beats import (
    RENEW_EVERY_S,
    SECOND,
    Renewals,
    heart,
    hold,
    proof_of,
    slot_lease,
    told,
)

pytestmark = pytest.mark.django_db


# -- renewal -----------------------------------------------------------------------------------


def test_a_lease_is_renewed_when_it_is_due_and_not_before(
    board: Board, begun: Claimed, worker: Registered, later: Callable[[float], None]
) -> None:
    guard = hold(board, begun)
    beating = heart(board, worker)
    before = slot_lease(begun)

    beating.beat()
    assert (slot_lease(begun).version, board.view(0).told) == (before.version, None)

    later(RENEW_EVERY_S)
    beating.beat()
    beating.beat()
    renewed = slot_lease(begun)
    assert (renewed.renewal_count, renewed.version) == (1, before.version + 1)
    assert renewed.expires_at > before.expires_at
    word = told(board)
    assert (word.renewals, word.belief.certainty) == (1, Certainty.CERTAIN)
    assert word.belief.deadline.at > boot_seconds() + 29
    guard.check()


def test_many_leases_are_renewed_in_one_beat(
    board: Board, admit: Callable[..., Job], worker: Registered
) -> None:
    admit(), admit()
    for index, job in enumerate(queue_up()):
        hold(board, claim(job, worker, slot=index), index=index, age=11)
    heart(board, worker).beat()
    assert list(LeaseRow.objects.values_list("renewal_count", flat=True)) == [1, 1]
    assert [told(board, index).renewals for index in (0, 1)] == [1, 1]


def test_what_is_given_back_is_followed_no_longer(
    board: Board, begun: Claimed, worker: Registered, later: Callable[[float], None]
) -> None:
    hold(board, begun)
    beating = heart(board, worker)
    beating.beat()
    board.release(0)
    later(RENEW_EVERY_S)
    beating.beat()
    assert slot_lease(begun).renewal_count == 0


def test_a_refused_renewal_is_told_as_a_loss(
    board: Board, begun: Claimed, worker: Registered
) -> None:
    guard = hold(board, begun, age=11)
    attempts.lose_of_worker(
        begun.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.REVOKED_BY_OPERATOR
    )
    guard.check()
    before = photograph("leaseq_lease")

    heart(board, worker).beat()

    belief = told(board).belief
    assert (belief.certainty, belief.reason) == (Certainty.LOST, RenewalRefusal.LEASE_ENDED)
    with pytest.raises(OwnershipLost):
        guard.check()
    assert photograph("leaseq_lease") == before


def test_a_cancellation_shows_on_the_board_and_the_lease_is_followed_on(
    board: Board, begun: Claimed, worker: Registered
) -> None:
    guard = hold(board, begun, age=11)
    cancellation.ask(begun.job_id, actor="user:test", reason="no longer needed")
    heart(board, worker).beat()
    belief = told(board).belief
    assert (belief.certainty, belief.cancel_asked) == (Certainty.CERTAIN, True)
    assert slot_lease(begun).renewal_count == 1
    assert guard.cancel_asked()
    with pytest.raises(CancelAsked):
        guard.check()


def test_the_policys_grace_is_learned_with_the_first_answer(
    board: Board, begun: Claimed, worker: Registered
) -> None:
    Job.objects.get().policy.__class__.objects.update(stop_grace=9 * SECOND)
    hold(board, begun, age=11)
    beating = heart(board, worker)
    assert beating.stop_grace_of(proof_of(begun)) == 5 * SECOND
    beating.beat()
    assert beating.stop_grace_of(proof_of(begun)) == 9 * SECOND


# -- silence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [OperationalError("the database is away"), RuntimeError("a fault of our own")],
    ids=["the database", "anything else"],
)
def test_a_renewal_without_an_answer_is_doubt_until_the_next_one(
    beating: Heartbeat,
    begun: Claimed,
    later: Callable[[float], None],
    renewals: Renewals,
    error: BaseException,
) -> None:
    board = seats.board()
    guard = hold(board, begun, age=11)
    renewals.fail(error)

    beating.beat()
    assert told(board).belief.certainty is Certainty.UNCERTAIN
    with pytest.raises(OwnershipUncertain):
        guard.check()

    renewals.mend()
    later(2)
    beating.beat()
    assert (told(board).belief.certainty, told(board).renewals) == (Certainty.CERTAIN, 1)
    guard.check()


def test_an_answer_that_was_lost_is_asked_for_again_and_counts_once(
    beating: Heartbeat, begun: Claimed, later: Callable[[float], None], renewals: Renewals
) -> None:
    board = seats.board()
    hold(board, begun, age=11)

    def renew_and_lose_the_answer(wishes: Any) -> Any:
        renewals.real(wishes)
        raise OperationalError("the answer of COMMIT was lost")

    renewals.become(renew_and_lose_the_answer)
    beating.beat()
    assert told(board).belief.certainty is Certainty.UNCERTAIN
    renewals.mend()
    later(2)
    beating.beat()
    assert (slot_lease(begun).renewal_count, told(board).renewals) == (1, 1)


def test_silence_until_the_deadline_is_a_loss(
    beating: Heartbeat, begun: Claimed, later: Callable[[float], None], renewals: Renewals
) -> None:
    guard = hold(seats.board(), begun, age=11)
    renewals.fail(OperationalError("the database is away"))
    beating.beat()
    later(30)
    beating.beat()
    with pytest.raises(OwnershipLost):
        guard.check()
