"""End a task whose lease is lost: it is told first, then its process is killed (SPEC D4)."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta

from leaseq.owner.clock import boot_seconds
from leaseq.owner.guard import Proof
from leaseq.vocabulary import Certainty
from leaseq.worker.board import Board
from leaseq.worker.presence import start_ticks_of

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1


class Stopper(threading.Thread):
    """Watches the board without any I/O, so that no outage can delay a hard stop."""

    def __init__(self, board: Board, *, grace_of: Callable[[Proof], timedelta]) -> None:
        super().__init__(name="leaseq-stopper", daemon=True)
        self._board = board
        self._grace_of = grace_of
        self._told_at: dict[Proof, float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        """Look at every cell until `finish`."""
        while not self._over.wait(TICK_SECONDS):
            try:
                self.look(boot_seconds())
            except Exception:
                log.exception("leaseq: a look at the board went wrong; the next one comes")

    def finish(self) -> None:
        """End the thread and wait for it."""
        self._over.set()
        self.join()

    def look(self, now: float) -> None:
        """Kill each pool process whose task was told to stop and did not within the grace."""
        standing = set()
        for held in self._board.holding():
            told = self._board.view(held.index).told
            belief = held.first_belief()
            if told is not None and told.proof == held.proof:
                belief = told.belief
            lost = belief.certainty_at(now) is Certainty.LOST
            if not lost and not belief.cancel_asked:
                continue
            standing.add(held.proof)
            told_at = self._told_at.setdefault(held.proof, now)
            if now - told_at < self._grace_of(held.proof).total_seconds():
                continue
            if start_ticks_of(held.pid) == held.start_ticks:
                log.warning(
                    "leaseq: pool process %s did not stop for attempt %s: killed",
                    held.pid,
                    held.proof.attempt_id,
                )
                with contextlib.suppress(ProcessLookupError):
                    os.kill(held.pid, signal.SIGKILL)
        for proof in self._told_at.keys() - standing:
            del self._told_at[proof]
