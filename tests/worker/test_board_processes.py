"""The board between real processes: fork and spawn, pauses, kills and torn writes (SPEC C4a)."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from leaseq.errors import LeaseqBug, LeaseqError
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import NOTHING, Deadline
from leaseq.owner.guard import Belief, Proof
from leaseq.owner.renewer import Cadence, RenewalPlan
from leaseq.vocabulary import Certainty
from leaseq.worker.board import Board, BoardGuard
from leaseq.worker.presence import start_ticks_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)

PROOF = Proof(UUID(int=1), UUID(int=2), 1, 7)
TTL, RENEW_EVERY = timedelta(seconds=1), timedelta(seconds=0.3)
PATIENCE = 20.0
FORK = multiprocessing.get_context("fork")


# -- what runs in the other processes ----------------------------------------------------------


def claim(board: Board, index: int, *, ttl: timedelta, renew_every: timedelta) -> BoardGuard:
    """Hold PROOF from now on, as a claim that the authority answered at once."""
    now = boot_seconds()
    board.hold(
        index,
        pid=os.getpid(),
        start_ticks=start_ticks_of(os.getpid()) or 0,
        proof=PROOF,
        ttl=ttl,
        renew_every=renew_every,
        claimed_at=now,
        deadline=Deadline(now + ttl.total_seconds()),
    )
    return BoardGuard(board, index, PROOF)


def pool_process(pipe: Connection, path: str, index: int) -> None:
    """A pool process: claims, then checks its guard whenever it is asked to."""
    board = Board.attach(Path(path))
    guard = claim(board, index, ttl=TTL, renew_every=RENEW_EVERY)
    pipe.send("holding")
    while pipe.recv() == "check":
        try:
            guard.check()
        except LeaseqError as error:
            pipe.send(type(error).__name__)
        else:
            pipe.send("sound")
    board.release(index)
    pipe.send("released")


def heartbeat(pipe: Connection, path: str) -> None:
    """A parent that renews what it finds held whenever that is due, and says so, for ever."""
    board = Board.attach(Path(path))
    pipe.send("beating")
    assert pipe.recv() == "go"
    (held,) = board.holding()
    cadence = Cadence(
        ttl=held.ttl, renew_every=held.renew_every, latency=timedelta(seconds=0.2), margin=NOTHING
    )
    plan = RenewalPlan.begin(
        cadence, claimed_at=held.claimed_at, deadline=held.deadline, jitter=0.0
    )
    while not pipe.poll(0.01):
        now = boot_seconds()
        due = plan.due(now)
        if due:
            plan = plan.after_sent(now)
            plan = plan.after_answer(boot_seconds(), remaining=held.ttl, jitter=0.0)
        board.publish(0, PROOF, plan.belief(boot_seconds()), renewals=plan.renewals)
        if due:
            pipe.send("renewed")


def numbered(count: int) -> tuple[Proof, Belief]:
    """A word of which every field says the same number, so that a mixture shows."""
    proof = Proof(UUID(int=count), UUID(int=count), count, count)
    told = Belief(
        deadline=Deadline(float(count)),
        doubt_at=float(count),
        certainty=list(Certainty)[count % 3],
        cancel_asked=bool(count % 2),
        reason=str(count),
    )
    return proof, told


def hammer(pipe: Connection, path: str, first: int) -> None:
    """Write numbered words as fast as may be, until told to stop or killed."""
    board = Board.attach(Path(path))
    pipe.send("hammering")
    count = first
    while count % 100 or not pipe.poll():
        proof, told = numbered(count)
        board.publish(0, proof, told, renewals=count)
        count += 1


# -- the tests' side ---------------------------------------------------------------------------


@pytest.fixture(params=["fork", "spawn"])
def context(request: pytest.FixtureRequest) -> Any:
    return multiprocessing.get_context(request.param)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create_private(cells=2)
    yield made
    made.remove()
    made.close()


@contextmanager
def running(
    context: Any, target: Callable[..., None], *arguments: object
) -> Iterator[tuple[Connection, Any]]:
    """Run `target` in a process; killed at the end, whatever state it is in."""
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield ours, process
    finally:
        process.kill()
        process.join(PATIENCE)
        ours.close()


def hear(pipe: Connection) -> str:
    assert pipe.poll(PATIENCE), "the other process said nothing"
    said: str = pipe.recv()
    return said


def ask(pipe: Connection) -> str:
    pipe.send("check")
    return hear(pipe)


def stop(pid: int) -> None:
    """SIGSTOP, and wait until it has taken hold."""
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def hear_nothing_until(instant: float, pipe: Connection) -> None:
    """Let time pass until the boot clock shows `instant`; the other process keeps silent."""
    while (left := instant - boot_seconds()) > 0:
        assert not pipe.poll(left)


def lasting(span: float, certainty: Certainty = Certainty.CERTAIN) -> Belief:
    now = boot_seconds()
    return Belief(deadline=Deadline(now + span), doubt_at=now + span, certainty=certainty)


def test_parent_and_pool_process_hear_each_other(context: Any, board: Board) -> None:
    with running(context, pool_process, str(board.path), 1) as (pipe, process):
        assert hear(pipe) == "holding"
        (held,) = board.holding()
        assert (held.index, held.pid, held.proof) == (1, process.pid, PROOF)
        assert held.start_ticks == start_ticks_of(process.pid)
        board.publish(1, PROOF, lasting(60.0), renewals=1)
        assert ask(pipe) == "sound"
        board.publish(1, PROOF, lasting(60.0, Certainty.UNCERTAIN), renewals=1)
        assert ask(pipe) == "OwnershipUncertain"
        board.publish(1, PROOF, lasting(60.0, Certainty.LOST), renewals=1)
        assert ask(pipe) == "OwnershipLost"
        pipe.send("release")
        assert hear(pipe) == "released"
        assert board.holding() == []


def test_a_process_that_is_killed_leaves_its_claim_for_the_parent_to_judge(
    context: Any, board: Board
) -> None:
    with running(context, pool_process, str(board.path), 0) as (pipe, process):
        assert hear(pipe) == "holding"
        process.kill()
        process.join(PATIENCE)
        (held,) = board.holding()
        assert start_ticks_of(held.pid) != held.start_ticks


def test_a_process_stopped_past_its_deadline_wakes_without_its_lease(
    context: Any, board: Board
) -> None:
    with running(context, pool_process, str(board.path), 0) as (pipe, process):
        assert hear(pipe) == "holding"
        stop(process.pid)
        pipe.send("check")
        (held,) = board.holding()
        hear_nothing_until(held.deadline.at, pipe)
        os.kill(process.pid, signal.SIGCONT)
        assert hear(pipe) == "OwnershipLost"
        board.publish(0, PROOF, lasting(60.0), renewals=1)
        assert ask(pipe) == "OwnershipLost"


def test_a_process_stopped_while_its_parent_renews_keeps_its_lease(
    context: Any, board: Board
) -> None:
    with running(context, pool_process, str(board.path), 0) as (pipe, process):
        assert hear(pipe) == "holding"
        stop(process.pid)
        pipe.send("check")
        (held,) = board.holding()
        hear_nothing_until(held.deadline.at, pipe)
        board.publish(0, PROOF, lasting(60.0), renewals=1)
        os.kill(process.pid, signal.SIGCONT)
        assert hear(pipe) == "sound"


def test_a_stopped_parent_is_doubt_then_loss_and_its_return_revives_nothing(
    board: Board,
) -> None:
    with running(FORK, heartbeat, str(board.path)) as (pipe, process):
        assert hear(pipe) == "beating"
        guard = claim(board, 0, ttl=timedelta(seconds=2), renew_every=timedelta(seconds=0.4))
        pipe.send("go")
        for _ in range(2):
            assert hear(pipe) == "renewed"
        guard.check()
        stop(process.pid)
        seen = [Certainty.CERTAIN]
        while seen[-1] is not Certainty.LOST:
            now_seen = guard.certainty()
            if now_seen is not seen[-1]:
                seen.append(now_seen)
        assert seen == [Certainty.CERTAIN, Certainty.UNCERTAIN, Certainty.LOST]
        os.kill(process.pid, signal.SIGCONT)
        limit = boot_seconds() + PATIENCE
        while (told := board.view(0).told) and told.belief.certainty is not Certainty.LOST:
            assert boot_seconds() < limit, "the parent never said that the lease is lost"
        assert not pipe.poll()
        assert guard.certainty() is Certainty.LOST


def test_a_reader_never_sees_a_mixture_of_two_words(context: Any, board: Board) -> None:
    with running(context, hammer, str(board.path), 1) as (pipe, _process):
        assert hear(pipe) == "hammering"
        until, reads, changes, last = boot_seconds() + 0.4, 0, 0, 0
        while boot_seconds() < until:
            told = board.view(0).told
            if told is None:
                continue
            reads += 1
            assert (told.proof, told.belief) == numbered(told.renewals)
            assert told.renewals >= last
            changes += told.renewals != last
            last = told.renewals
        assert reads > 100
        assert changes > 10


def test_even_two_writers_at_once_are_never_believed_as_one(board: Board) -> None:
    """One half has one writer; this breaks that rule, and may cost readings but not truth."""
    with (
        running(FORK, hammer, str(board.path), 1) as (one, _first),
        running(FORK, hammer, str(board.path), 10**9) as (other, _second),
    ):
        assert (hear(one), hear(other)) == ("hammering", "hammering")
        until, reads = boot_seconds() + 0.4, 0
        while boot_seconds() < until:
            try:
                told = board.view(0).told
            except LeaseqBug:
                continue
            if told is not None:
                reads += 1
                assert (told.proof, told.belief) == numbered(told.renewals)
        assert reads > 10


def test_a_writer_killed_at_any_moment_leaves_a_whole_word(board: Board) -> None:
    last = 0
    for round_number in range(1, 6):
        with running(FORK, hammer, str(board.path), round_number * 10**6) as (pipe, process):
            assert hear(pipe) == "hammering"
            while (told := board.view(0).told) is None or told.renewals == last:
                assert process.is_alive()
            process.kill()
            process.join(PATIENCE)
        told = board.view(0).told
        assert told is not None
        assert (told.proof, told.belief) == numbered(told.renewals)
        assert told.renewals >= round_number * 10**6
        last = told.renewals
