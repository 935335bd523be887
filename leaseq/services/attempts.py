"""Claim, begin, progress, complete, fail, lose: what an attempt goes through (SPEC A5, D6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from leaseq.conf import settings
from leaseq.db import clock, locks
from leaseq.db.identity import draw_fences, new_id
from leaseq.db.locks import Locked
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug, TransitionRefused
from leaseq.models import Attempt, Hold, Lease, OutboxMessage, Slot
from leaseq.rules import attempts as rules
from leaseq.rules.outcome import LossVerdict
from leaseq.rules.ownership import Fence, OwnerProof
from leaseq.rules.payload import PayloadProblem, judge_payload
from leaseq.rules.transitions import Refused
from leaseq.services import endings, facts, leases, usage
from leaseq.services.events import JobStory, storable
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    ResourceType,
    TransitionRefusal,
    WorkerState,
)

ERROR_LENGTH_MAX = 4_000
REPORT_BYTES_MAX = 4_096
REPORT_DEPTH_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a worker owns after a claim, and what it needs to run the attempt.

    `remaining` is the authority's remaining time of the lease at its answer.
    """

    proof: OwnerProof
    job_id: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    remaining: timedelta
    ttl: timedelta
    renew_every: timedelta
    stop_grace: timedelta
    attempt_number: int


def refuse(refused: Refused, *, message: str, **ids: Any) -> TransitionRefused:
    """Return the error that tells why a change was not made."""
    return TransitionRefused(message, reason=refused.reason, **ids)


def claim(attempt_id: UUID, *, worker_id: UUID, slot_id: int) -> Claimed:
    """Take ownership of a queued attempt for one slot of a live worker (SPEC B10, D6).

    In one transaction: the slot's lease is granted, the permits are transferred from the control
    plane, the attempt counts, the job is dispatching. A lease left on the slot past its time is
    expired first. Raises TransitionRefused, having changed nothing, for a message that comes
    twice, late or to the wrong worker.
    """
    _clear_slot(slot_id)
    with atomic():
        locked = locks.by_attempt(attempt_id)
        if locked is None:
            raise TransitionRefused(
                "no such attempt", reason=TransitionRefusal.UNKNOWN_ATTEMPT, attempt_id=attempt_id
            )
        slot = locks.slot(slot_id)
        hold = Hold.objects.filter(job=locked.job).order_by("-created_at").first()
        slot_lease = Lease.objects.filter(slot_id=slot_id, status=LeaseStatus.ACTIVE).first()
        now = clock.read()
        verdict = rules.decide_claim(
            _claim_facts(
                locked, now=now, hold=hold, slot=slot, slot_lease=slot_lease, worker_id=worker_id
            )
        )
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="not claimed", attempt_id=attempt_id)
        if verdict.expire_first is not None:
            raise TransitionRefused(
                "the slot's last lease ran out just now; the sweep goes first",
                reason=TransitionRefusal.NO_FREE_SLOT,
                attempt_id=attempt_id,
            )

        # From here on nothing may refuse.
        story = JobStory(locked.job, actor=f"worker:{worker_id}", now=now)
        lease = None
        if verdict.expires_at > now:
            lease = _grant(locked, story, verdict, worker_id=worker_id, slot_id=slot_id)
        else:
            # No lease could be granted any more, and without one no sweep would find the job.
            endings.lose(
                locked, story=story, cause=EndReason.RESERVATION_EXPIRED, holder_stopped=True
            )
        story.save()
    if lease is None:
        raise TransitionRefused(
            "a bound of the job ran out while it waited, and it was ended by it",
            reason=TransitionRefusal.RESERVATION_EXPIRED,
            attempt_id=attempt_id,
        )
    return _claimed(locked, lease, now=now)


def _clear_slot(slot_id: int) -> None:
    """End a lease of this slot that is past its time, in a transaction of its own (D2)."""
    last = Lease.objects.filter(slot_id=slot_id, status=LeaseStatus.ACTIVE).first()
    if last is not None and last.expires_at <= clock.read():
        leases.expire(last.job_id, actor="claim")


def _claim_facts(
    locked: Locked,
    *,
    now: datetime,
    hold: Hold | None,
    slot: Slot | None,
    slot_lease: Lease | None,
    worker_id: UUID,
) -> rules.ClaimFacts:
    job = locked.job
    worker = None if slot is None else slot.worker
    owned = worker is not None and worker.pk == worker_id
    return rules.ClaimFacts(
        attempt=facts.of_attempt(locked, now=now),
        permits=tuple(facts.of_lease(one) for one in locked.leases),
        hold=facts.of_hold(hold),
        queue_matches=slot is not None and job.queue in slot.queues,
        worker_state=WorkerState(worker.state) if worker and owned else WorkerState.LIVE,
        slot_owned=owned,
        slot_lease=None if slot_lease is None else facts.of_lease(slot_lease),
        bounds=facts.of_bounds(locked),
        ttl=job.policy.lease_ttl,
    )


def _grant(
    locked: Locked, story: JobStory, verdict: rules.Claim, *, worker_id: UUID, slot_id: int
) -> Lease:
    job, attempt, now = locked.job, locked.attempt, story.now
    fences = draw_fences(1 + len(locked.leases))
    first_reserved_at = attempt.reserved_at or now
    slot_lease = _lease(locked, now=now, expires_at=verdict.expires_at, fence=fences[0])
    slot_lease.resource_type, slot_lease.slot_id = ResourceType.SLOT, slot_id
    slot_lease.worker_id, slot_lease.first_reserved_at = worker_id, first_reserved_at
    successors = [slot_lease]
    for permit, fence in zip(locked.leases, fences[1:], strict=True):
        heir = _lease(locked, now=now, expires_at=verdict.expires_at, fence=fence)
        heir.resource_type, heir.pool_id = ResourceType.PERMIT, permit.pool_id
        heir.worker_id, heir.predecessor = worker_id, permit
        heir.first_reserved_at = permit.first_reserved_at
        heir.renewals_before = permit.renewals_before + permit.renewal_count
        successors.append(heir)
    endings.end_leases(locked, status=LeaseStatus.TRANSFERRED, reason=EndReason.CLAIMED, now=now)
    Lease.objects.bulk_create(successors)
    changed = Attempt.objects.filter(
        pk=attempt.pk, state=AttemptState.OPEN, claimed_at__isnull=True
    ).update(claimed_at=now, worker_id=worker_id)
    if changed != 1:
        raise LeaseqBug("a locked attempt changed under its lock", attempt_id=attempt.pk)
    OutboxMessage.objects.filter(attempt=attempt).delete()
    endings.stop_queue_clock(story)
    story.change(attempts_counted=job.attempts_counted + 1)
    story.tell(
        "claimed",
        to_state=JobState.DISPATCHING,
        attempt_id=attempt.pk,
        lease_id=slot_lease.pk,
        slot=slot_id,
        fence=[slot_lease.fence_epoch, slot_lease.fence],
        permits=[str(one.pk) for one in successors[1:]],
    )
    return slot_lease


def _lease(locked: Locked, *, now: datetime, expires_at: datetime, fence: Fence) -> Lease:
    return Lease(
        id=new_id(),
        job=locked.job,
        attempt=locked.attempt,
        expires_at=expires_at,
        created_at=now,
        fence_epoch=fence.epoch,
        fence=fence.counter,
    )


def _claimed(locked: Locked, lease: Lease, *, now: datetime) -> Claimed:
    job, policy = locked.job, locked.job.policy
    return Claimed(
        proof=OwnerProof(
            lease_id=lease.pk,
            attempt_id=locked.attempt.pk,
            fence=Fence(epoch=lease.fence_epoch, counter=lease.fence),
        ),
        job_id=job.pk,
        task=job.task,
        args=job.payload["args"],
        kwargs=job.payload["kwargs"],
        remaining=lease.expires_at - now,
        ttl=policy.lease_ttl,
        renew_every=policy.renew_every,
        stop_grace=policy.stop_grace,
        attempt_number=locked.attempt.number,
    )


@dataclass(slots=True)
class Act:
    """One act of an owner: the locked rows, the time read after, and the facts."""

    locked: Locked
    facts: rules.ActFacts
    story: JobStory


def owner_act(proof: OwnerProof) -> Act:
    """Lock what an owner acts upon and read the clock after; call it inside a transaction."""
    locked = locks.by_attempt(proof.attempt_id)
    if locked is None:
        raise TransitionRefused(
            "no such attempt",
            reason=TransitionRefusal.UNKNOWN_ATTEMPT,
            attempt_id=proof.attempt_id,
        )
    now = clock.read()
    lease = locked.lease(proof.lease_id)
    word = rules.ByOwner(proof=proof, lease=None if lease is None else facts.of_lease(lease))
    return Act(
        locked=locked,
        facts=rules.ActFacts(attempt=facts.of_attempt(locked, now=now), word=word),
        story=JobStory(locked.job, actor=f"worker:{locked.attempt.worker_id}", now=now),
    )


def begin(proof: OwnerProof) -> None:
    """Record that the worker's own compute took the attempt over and started (SPEC E1, E2).

    Raises TransitionRefused for a late or stale owner, and after a cancel request: nothing new
    starts then (PROMISES P11). Nothing has changed in either case.
    """
    with atomic():
        act = owner_act(proof)
        accepted = rules.decide_accept(act.facts)
        if act.locked.job.cancel_asked_at is not None and not isinstance(accepted, Refused):
            accepted = Refused(reason=TransitionRefusal.CANCEL_ASKED)
        if isinstance(accepted, Refused):
            raise refuse(accepted, message="not begun", attempt_id=proof.attempt_id)
        mark(act, kind="accepted", to_state=JobState.PROVIDER_ACCEPTED, field="accepted_at")
        mark(act, kind="started", to_state=JobState.RUNNING, field="started_at")
        act.story.save()


def mark(
    act: Act, *, kind: str, to_state: JobState, field: Literal["accepted_at", "started_at"]
) -> None:
    """Write a time of the attempt that is not yet set, and tell the story of it."""
    attempt = act.locked.attempt
    changed = Attempt.objects.filter(
        **{"pk": attempt.pk, "state": AttemptState.OPEN, f"{field}__isnull": True}
    ).update(**{field: act.story.now})
    if changed != 1:
        raise LeaseqBug("a locked attempt changed under its lock", attempt_id=attempt.pk)
    act.story.tell(kind, to_state=to_state, attempt_id=attempt.pk)


def progress(proof: OwnerProof, *, report: Mapping[str, Any]) -> None:
    """Note evidence of progress of a running attempt; no event, like a renewal (SPEC B6).

    `report["usage"]`, quantities by unit, is booked if the attempt is lost. Raises
    TransitionRefused for whoever no longer owns it, and where the report is not small JSON.
    """
    sound = judge_payload(dict(report), bytes_max=REPORT_BYTES_MAX, depth_max=REPORT_DEPTH_MAX)
    if isinstance(sound, PayloadProblem):
        raise _bad_report(sound.why, proof)
    try:
        usage.sound(report.get("usage", {}))
    except usage.BadUsage as error:
        raise _bad_report(str(error), proof) from error
    with atomic():
        act = owner_act(proof)
        verdict = rules.decide_progress(act.facts)
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="no progress noted", attempt_id=proof.attempt_id)
        changed = Attempt.objects.filter(pk=proof.attempt_id, state=AttemptState.OPEN).update(
            progress_at=verdict.progress_at, progress=dict(report)
        )
        if changed != 1:
            raise LeaseqBug("a locked attempt changed", attempt_id=proof.attempt_id)


def _bad_report(why: str, proof: OwnerProof) -> TransitionRefused:
    return TransitionRefused(
        f"this progress cannot be stored: {why}",
        reason=TransitionRefusal.BAD_REPORT,
        attempt_id=proof.attempt_id,
    )


def complete(proof: OwnerProof, *, result: object) -> JobState:
    """Record the result as the job's and release its leases, once (SPEC A5, M1).

    Returns the job's state: completed, or cancelled where a cancellation was asked for first, or
    failed where the result is not JSON or too large. Raises TransitionRefused for a late or
    stale owner, having changed nothing.
    """
    sound = judge_payload(
        result,
        bytes_max=settings().result_bytes_max,
        depth_max=settings().payload_depth_max,
    )
    if isinstance(sound, PayloadProblem):
        too_large = sound.reason == "payload_too_large"
        cause = EndReason.RESULT_TOO_LARGE if too_large else EndReason.RESULT_NOT_JSON
        return fail(proof, cause=cause, error=f"the result cannot be stored: {sound.why}")
    with atomic():
        act = owner_act(proof)
        keep = act.locked.job.policy.keep_result
        verdict = rules.decide_complete(act.facts, keep_result=keep)
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="not completed", attempt_id=proof.attempt_id)
        endings.close_attempt(
            act.locked,
            story=act.story,
            outcome=verdict.attempt_state,
            reason=verdict.reason,
            result=result,
        )
        endings.end_job(
            act.story,
            state=verdict.job_state,
            reason=verdict.reason,
            attempt=act.locked.attempt,
            dead_letter=False,
        )
        act.story.save()
    return verdict.job_state


def fail(
    proof: OwnerProof, *, cause: EndReason, error: str, holder_stopped: bool = True
) -> JobState:
    """End an attempt without a result, by its owner, and say what becomes of the job (B7).

    The owner's word is also the evidence that its work has stopped. Raises TransitionRefused for
    a late or stale owner, having changed nothing.
    """
    with atomic():
        act = owner_act(proof)
        allowed = rules.decide_fail(act.facts)
        if isinstance(allowed, Refused):
            raise refuse(allowed, message="not failed", attempt_id=proof.attempt_id)
        verdict = endings.lose(
            act.locked,
            story=act.story,
            cause=cause,
            holder_stopped=holder_stopped,
            error=storable(error, length_max=ERROR_LENGTH_MAX),
        )
        if isinstance(verdict, Refused):
            raise refuse(verdict, message="not failed", attempt_id=proof.attempt_id)
        act.story.save()
        return JobState(act.locked.job.state)


def lose_of_worker(attempt_id: UUID, *, worker_id: UUID, cause: EndReason) -> LossVerdict | None:
    """End an attempt whose holder has provably stopped, without waiting for its lease (L5a).

    The caller vouches that the process which ran it is dead or was hard-stopped. Returns None
    where the attempt is no longer this worker's to lose, having changed nothing.
    """
    with atomic():
        locked = locks.by_attempt(attempt_id)
        if locked is None or locked.attempt.worker_id != worker_id:
            return None
        now = clock.read()
        story = JobStory(locked.job, actor=f"worker:{worker_id}", now=now)
        verdict = endings.lose(locked, story=story, cause=cause, holder_stopped=True)
        if isinstance(verdict, Refused):
            return None
        story.save()
        return verdict
