"""Renew all held leases in bulk, from the worker's main process, on a connection of its own.

The thread survives any error of the database or broker: a failed renewal makes ownership
uncertain, never lost by itself, and the deadline on the boot clock decides (SPEC C, D3, case C4).
"""

import logging
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import Error as DatabaseError

from leaseq.conf import settings
from leaseq.db.identity import jitter
from leaseq.db.transactions import connection
from leaseq.errors import TransitionRefused
from leaseq.owner.clock import boot_seconds
from leaseq.owner.guard import Proof
from leaseq.owner.renewer import Cadence, RenewalPlan
from leaseq.rules.ownership import Fence, OwnerProof
from leaseq.rules.renewal import Refused
from leaseq.services import attempts, leases, workers
from leaseq.services.leases import Answer, Renewal, Unanswered
from leaseq.vocabulary import EndReason, WorkerState
from leaseq.worker.board import Board
from leaseq.worker.cell import Held
from leaseq.worker.presence import ProcessIdentity, is_dead, own_identity

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1


@dataclass(slots=True)
class _Followed:
    """One held lease with the plan of its renewals."""

    held: Held
    plan: RenewalPlan
    stop_grace: timedelta = field(default=timedelta(seconds=5))


class Heartbeat(threading.Thread):
    """Follows what the pool holds on the board, renews it, and says how it stands."""

    def __init__(self, board: Board, *, worker_id: UUID, watches_processes: bool) -> None:
        super().__init__(name="leaseq-heartbeat", daemon=True)
        self.worker_id = worker_id
        self._board = board
        self._watches_processes = watches_processes
        self._followed: dict[Proof, _Followed] = {}
        self._buried: set[Proof] = set()
        self._own = own_identity()
        self._over = threading.Event()
        self._seen_due = 0.0

    def run(self) -> None:
        """Beat until `finish`; an error of one beat is logged and the next one comes."""
        while not self._over.wait(TICK_SECONDS):
            self.beat()
        connection().close()

    def finish(self) -> None:
        """End the thread and wait for it."""
        self._over.set()
        self.join()

    def beat(self) -> None:
        """Do what is due now; whatever goes wrong, the next beat comes (case C5).

        No part keeps the others from their work: one attempt that cannot be buried must not cost
        the leases of all.
        """
        for part in (self._follow, self._renew_due, self._bury_the_dead, self._be_seen):
            try:
                part()
            except Exception:
                log.exception("leaseq: a heartbeat went wrong; the next one comes")
                connection().close()

    def stop_grace_of(self, proof: Proof) -> timedelta:
        """Return the policy's time between the two stops for one held lease."""
        followed = self._followed.get(proof)
        return timedelta(seconds=5) if followed is None else followed.stop_grace

    def _follow(self) -> None:
        held_now = {held.proof: held for held in self._board.holding()}
        self._buried &= held_now.keys()
        for proof in self._followed.keys() - held_now.keys():
            del self._followed[proof]
        margin = timedelta(seconds=settings().safety_margin_seconds)
        for proof, held in held_now.items():
            if proof not in self._followed and proof not in self._buried:
                cadence = Cadence.of(held.ttl, held.renew_every, margin_max=margin)
                plan = RenewalPlan.begin(
                    cadence, claimed_at=held.claimed_at, deadline=held.deadline, jitter=jitter()
                )
                self._followed[proof] = _Followed(held, plan)

    def _bury_the_dead(self) -> None:
        """End the attempts of pool processes that are gone and cannot write any more (case B1)."""
        if not self._watches_processes:
            return
        for proof, followed in list(self._followed.items()):
            held = followed.held
            if not self._is_gone(held):
                continue
            log.warning("leaseq: pool process %s died with attempt %s", held.pid, proof.attempt_id)
            attempts.lose_of_worker(
                proof.attempt_id, worker_id=self.worker_id, cause=EndReason.WORKER_LOST
            )
            # Its cell is left alone: the next process of this index may hold there already.
            self._buried.add(proof)
            del self._followed[proof]

    def _is_gone(self, held: Held) -> bool:
        own = self._own
        holder = ProcessIdentity(own.node, own.boot_id, held.pid, held.start_ticks)
        return is_dead(holder) is True

    def _renew_due(self) -> None:
        now = boot_seconds()
        due = [one for one in self._followed.values() if one.plan.due(now)]
        for one in due:
            one.plan = one.plan.after_sent(now)
            self._publish(one)
        if not due:
            return
        try:
            answers = leases.renew_many([_renewal(one) for one in due])
        except DatabaseError as error:
            log.warning("leaseq: %d renewals without an answer: %s", len(due), error)
            connection().close()
            self._take_silence(due)
            return
        except Exception:
            # Or they would wait for an answer that never comes, and ask no more.
            self._take_silence(due)
            raise
        for one, answer in zip(due, answers, strict=True):
            self._take(one, answer)

    def _take_silence(self, asked: list[_Followed]) -> None:
        for one in asked:
            one.plan = one.plan.after_failure(boot_seconds(), jitter=jitter())
            self._publish(one)

    def _take(self, one: _Followed, answer: Answer) -> None:
        now = boot_seconds()
        one.stop_grace = answer.stop_grace or one.stop_grace
        if isinstance(answer.verdict, Unanswered):
            one.plan = one.plan.after_failure(now, jitter=jitter())
        elif isinstance(answer.verdict, Refused):
            log.warning(
                "leaseq: attempt %s is not renewed: %s",
                one.held.proof.attempt_id,
                answer.verdict.reason,
            )
            one.plan = one.plan.after_refusal(now, reason=answer.verdict.reason, jitter=jitter())
        else:
            one.plan = one.plan.after_answer(now, remaining=answer.left, jitter=jitter())
        if answer.cancel_asked:
            one.plan = one.plan.after_cancel()
        self._publish(one)

    def _publish(self, one: _Followed) -> None:
        self._board.publish(
            one.held.index,
            one.held.proof,
            one.plan.belief(boot_seconds()),
            renewals=one.plan.renewals,
        )

    def _be_seen(self) -> None:
        now = boot_seconds()
        if now < self._seen_due:
            return
        self._seen_due = now + settings().worker_grace_seconds / 5
        try:
            asked = workers.seen(self.worker_id)
        except TransitionRefused as refused:
            log.error("leaseq: %s; restart this worker", refused)  # noqa: TRY400 - no traceback
            return
        if asked == WorkerState.DRAINING:
            log.info("leaseq: this worker drains: it claims nothing more")


def _renewal(one: _Followed) -> Renewal:
    """Ask under one key until there is an answer, so that a lost answer costs nothing (B5)."""
    return Renewal(
        proof=owner_proof(one.held.proof),
        key=f"{one.held.proof.fence}:{one.plan.renewals}",
        cancel_follow=True,
    )


def owner_proof(proof: Proof) -> OwnerProof:
    """Return the authority's form of a proof from the board."""
    return OwnerProof(
        lease_id=proof.lease_id,
        attempt_id=proof.attempt_id,
        fence=Fence(epoch=proof.fence_epoch, counter=proof.fence),
    )
