"""Usage that a task measures itself, and a transaction that fences its own writes (SPEC C4, F4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

from leaseq.db import clock, locks
from leaseq.db.transactions import atomic, drop_if_dead
from leaseq.errors import OwnershipLost, TransitionRefused
from leaseq.models import Attempt, Lease
from leaseq.rules import attempts as rules
from leaseq.rules.ownership import OwnerProof, judge_ownership
from leaseq.rules.transitions import Refused
from leaseq.services import facts, usage
from leaseq.services.attempts import owner_act, refuse
from leaseq.vocabulary import AttemptState, TransitionRefusal

IDLE_MARGIN = timedelta(seconds=1)


def record_usage(proof: OwnerProof, *, unit: str, quantity: Decimal | int, model: str = "") -> None:
    """Add what this attempt consumed of one unit; priced now, settled after the job's end.

    Raises TransitionRefused for whoever no longer owns the attempt, and for a quantity that is
    negative, not finite or not exact; nothing is recorded then.
    """
    try:
        exact = usage.sound({unit: quantity})
    except usage.BadUsage as error:
        raise _bad(str(error), proof.attempt_id) from error
    if exact[unit] != Decimal(quantity):
        raise _bad(f"quantity {quantity!r} has more than six places", proof.attempt_id)
    drop_if_dead()
    with atomic():
        act = owner_act(proof)
        allowed = rules.decide_fail(act.facts)
        if isinstance(allowed, Refused):
            raise refuse(allowed, message="usage not recorded", attempt_id=proof.attempt_id)
        job = act.locked.job
        usage.book(
            act.locked.attempt,
            job=job,
            provider=job.provider,
            model=model,
            quantities=exact,
            now=act.story.now,
        )
        act.story.tell(
            "usage_recorded", attempt_id=proof.attempt_id, unit=unit, quantity=str(quantity)
        )
        act.story.save()


def _bad(why: str, attempt_id: UUID) -> TransitionRefused:
    return TransitionRefused(why, reason=TransitionRefusal.BAD_REPORT, attempt_id=attempt_id)


@contextmanager
def fenced(proof: OwnerProof) -> Iterator[None]:
    """Open a transaction in which the task's own writes commit only while it owns the lease.

    The job and attempt are locked FOR SHARE, as a renewal does, so that renewals go on and nobody
    can take the attempt over before the commit; ownership is judged at the beginning and, by the
    clock, just before the end. Raises OwnershipLost, and nothing of the block is committed.
    """
    drop_if_dead()
    with atomic():
        locks.share(proof.attempt_id)
        # A process that freezes in here must not keep the job longer than its lease.
        locks.end_if_idle_for(_demand_ownership(proof) + IDLE_MARGIN)
        yield
        _demand_ownership(proof)


def _demand_ownership(proof: OwnerProof) -> timedelta:
    """Return the time that is left of the lease; raises OwnershipLost where it is not held."""
    lease = Lease.objects.filter(pk=proof.lease_id).first()
    state = Attempt.objects.filter(pk=proof.attempt_id).values_list("state", flat=True).first()
    now = clock.read()
    reason = judge_ownership(proof, None if lease is None else facts.of_lease(lease), now=now)
    if reason is None and state != AttemptState.OPEN:
        reason = TransitionRefusal.ATTEMPT_CLOSED
    if lease is None or reason is not None:
        raise OwnershipLost(
            f"the block is not committed: {reason}",
            lease_id=proof.lease_id,
            attempt_id=proof.attempt_id,
        )
    return lease.expires_at - now
