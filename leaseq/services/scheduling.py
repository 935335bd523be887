"""Reserve waiting jobs and queue them; end those that waited too long (SPEC A4, D5, M7)."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from leaseq.conf import settings
from leaseq.db import candidates, clock, locks
from leaseq.db.identity import draw_fences, new_id
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Hold, Job, Lease, OutboxMessage, PermitPool
from leaseq.queries import leases as lease_queries
from leaseq.rules import attempts as rules
from leaseq.rules.ordering import Waiting, pick
from leaseq.rules.outcome import decide_queue_expiry
from leaseq.rules.transitions import Refused
from leaseq.services import endings, facts
from leaseq.services.events import JobStory
from leaseq.vocabulary import (
    AttemptState,
    BoundHit,
    EndReason,
    JobState,
    PoolKind,
    ResourceType,
)

CANDIDATES_PER_LINE = 50
LOCKED_AT_ONCE = 200
ACTOR = "control:schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What one pass over one queue did: jobs queued, and counts of what was not, by reason."""

    queued: list[UUID] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)


def room(queue: str, *, now: datetime) -> int:
    """Return how many more messages live slots of this queue can soon take (SPEC D5)."""
    slots = lease_queries.live_slots(queue, now=now).count()
    free = lease_queries.free_slots(queue, now=now)
    waiting = Job.objects.filter(
        queue=queue, state__in=[JobState.RESERVED, JobState.QUEUED]
    ).count()
    return free + slots * settings().lookahead_per_slot - waiting


def reserve(queue: str, *, limit: int) -> Reserved:
    """Reserve up to `limit` waiting jobs of a queue and write their messages (SPEC A4).

    The order is priority, then fair share between accounts, then age. One transaction grants
    the permits, under the pools' locks, and queues the jobs; a job without a free permit keeps
    its place. Two passes at once take different jobs. A long line is gone through in parts, each
    in a transaction of its own, so that no pass locks all who wait.
    """
    now = clock.read()
    found = candidates.waiting(queue=queue, now=now, each=CANDIDATES_PER_LINE)
    counts = candidates.active_by_account({one.account_id for one in found})
    active = dict[Hashable, int](counts.items())
    line = [
        Waiting(
            job_id=one.job_id,
            account_id=one.account_id,
            priority=one.priority,
            age_since=one.submitted_at,
        )
        for one in found
    ]
    order = [one.job_id for one in pick(line, active_by_account=active, n=len(line))]
    queued: list[UUID] = []
    refused: dict[str, int] = defaultdict(int)
    for start in range(0, len(order), LOCKED_AT_ONCE):
        if len(queued) >= limit:
            break
        part = order[start : start + LOCKED_AT_ONCE]
        reserved = _reserve_in_order(part, limit=limit - len(queued))
        queued += reserved.queued
        for reason, times in reserved.refused.items():
            refused[reason] += times
    return Reserved(queued=queued, refused=dict(refused))


def _reserve_in_order(order: Sequence[UUID], *, limit: int) -> Reserved:
    refused: dict[str, int] = defaultdict(int)
    with atomic():
        jobs, attempts = _lock_waiting(order)
        pools = _Pools(jobs.values())
        now = clock.read()
        pools.count(now=now)
        # The latest hold of each job, open or not: without an open one nothing is dispatched.
        holds = Hold.objects.filter(job__in=jobs.values()).order_by("created_at", "pk")
        money = {one.job_id: one for one in holds}
        granted: list[tuple[locks.Locked, datetime, list[PermitPool]]] = []
        for job_id in order:
            if job_id not in jobs or len(granted) >= limit:
                continue
            locked = locks.Locked(jobs[job_id], attempts[job_id], [])
            needed = pools.of(locked.job)
            verdict = rules.decide_reserve(
                _reserve_facts(locked, now=now, hold=money.get(job_id), free=pools.free(needed))
            )
            if isinstance(verdict, Refused):
                refused[str(verdict.reason)] += 1
                continue
            if verdict.expires_at <= now:
                _end_at_bound(locked, now=now)
                continue
            pools.take(needed)
            granted.append((locked, verdict.expires_at, needed))
        _write(granted, now=now)
    return Reserved(queued=[one.job.pk for one, _, _ in granted], refused=dict(refused))


def _lock_waiting(order: Sequence[UUID]) -> tuple[dict[UUID, Job], dict[UUID, Attempt]]:
    jobs = {
        one.pk: one
        for one in Job.objects.get_queryset()
        .select_for_update(no_key=True, of=("self",), skip_locked=True)
        .select_related("policy", "account")
        .filter(pk__in=order, state=JobState.ADMITTED)
        .order_by("pk")
    }
    rows = Attempt.objects.locked().filter(job__in=jobs.values(), state=AttemptState.OPEN)
    return jobs, {one.job_id: one for one in rows.order_by("pk")}


class _Pools:
    """The permit pools of a batch of jobs, locked, with what each has left."""

    def __init__(self, jobs: Collection[Job]) -> None:
        self._of: dict[UUID, list[int]] = {}
        named = {one.pk: _keys(one) for one in jobs}
        wanted = {key for keys in named.values() for key in keys}
        known = {
            (one.kind, one.key): one.pk
            for one in PermitPool.objects.filter(key__in={key for _, key in wanted})
            if (one.kind, one.key) in wanted
        }
        self._locked = locks.pools(sorted(known.values()))
        for job_id, keys in named.items():
            self._of[job_id] = [known[key] for key in keys if key in known]
        self._left: dict[int, int] = {}

    def count(self, *, now: datetime) -> None:
        """Count live permits, by the clock: an expired row does not block (SPEC N3)."""
        if not self._locked:
            return
        live = locks.count_live_permits(self._locked, now=now)
        self._left = {pk: pool.limit - live.get(pk, 0) for pk, pool in self._locked.items()}

    def of(self, job: Job) -> list[PermitPool]:
        return [self._locked[pk] for pk in self._of[job.pk]]

    def free(self, needed: Sequence[PermitPool]) -> bool:
        return all(self._left[one.pk] > 0 for one in needed)

    def take(self, needed: Sequence[PermitPool]) -> None:
        for one in needed:
            self._left[one.pk] -= 1


def _keys(job: Job) -> list[tuple[str, str]]:
    return [
        (PoolKind.ACCOUNT, job.account.name),
        (PoolKind.QUEUE, job.queue),
        (PoolKind.POLICY, job.policy.name),
        (PoolKind.PROVIDER, job.provider),
    ]


def _reserve_facts(
    locked: locks.Locked, *, now: datetime, hold: Hold | None, free: bool
) -> rules.ReserveFacts:
    job = locked.job
    return rules.ReserveFacts(
        attempt=facts.of_attempt(locked, now=now),
        not_before=job.not_before,
        hold=facts.of_hold(hold),
        permits_free=free,
        bounds=facts.of_bounds(locked),
        ttl=job.policy.lease_ttl,
    )


def _end_at_bound(locked: locks.Locked, *, now: datetime) -> None:
    """End a job whose lifetime ran out while it waited, as its policy says (B7)."""
    story = JobStory(locked.job, actor=ACTOR, now=now)
    verdict = endings.lose(
        locked, story=story, cause=EndReason.RESERVATION_EXPIRED, holder_stopped=True
    )
    if isinstance(verdict, Refused):
        raise LeaseqBug("a job at its bound could not be ended", job_id=locked.job.pk)
    story.save()


def _write(
    granted: Sequence[tuple[locks.Locked, datetime, list[PermitPool]]], *, now: datetime
) -> None:
    if not granted:
        return
    leases = []
    fences = iter(draw_fences(sum(len(pools) for _, _, pools in granted)))
    for locked, expires_at, pools in granted:
        for pool in pools:
            fence = next(fences)
            leases.append(
                Lease(
                    id=new_id(),
                    resource_type=ResourceType.PERMIT,
                    pool=pool,
                    job=locked.job,
                    attempt=locked.attempt,
                    fence_epoch=fence.epoch,
                    fence=fence.counter,
                    expires_at=expires_at,
                    created_at=now,
                    first_reserved_at=now,
                )
            )
    Lease.objects.bulk_create(leases)
    attempt_ids = [locked.attempt.pk for locked, _, _ in granted]
    changed = Attempt.objects.filter(
        pk__in=attempt_ids, state=AttemptState.OPEN, reserved_at__isnull=True
    ).update(reserved_at=now)
    if changed != len(granted):
        raise LeaseqBug("a locked attempt changed under its lock", attempts=len(granted))
    for locked, _, pools in granted:
        _tell(locked, pools, now=now)
    OutboxMessage.objects.bulk_create(
        OutboxMessage(
            attempt=locked.attempt, task=locked.job.task, queue=locked.job.queue, send_at=now
        )
        for locked, _, _ in granted
    )


def _tell(locked: locks.Locked, pools: Sequence[PermitPool], *, now: datetime) -> None:
    story = JobStory(locked.job, actor=ACTOR, now=now)
    if locked.job.first_reserved_at is None:
        story.change(first_reserved_at=now)
    story.tell(
        "reserved",
        to_state=JobState.RESERVED,
        attempt_id=locked.attempt.pk,
        permits=[str(one) for one in pools],
    )
    verdict = rules.decide_queue(facts.of_attempt(locked, now=now))
    if isinstance(verdict, Refused):
        raise LeaseqBug("a reserved job could not be queued", job_id=locked.job.pk)
    story.tell("queued", to_state=JobState.QUEUED, attempt_id=locked.attempt.pk)
    story.save()


def expire_waiting(*, limit: int) -> int:
    """End jobs that waited past their queue deadline, and return how many (SPEC M7)."""
    now = clock.read()
    due = Job.objects.filter(queue_deadline_at__lte=now).order_by("queue_deadline_at")
    ended = 0
    for job_id in list(due.values_list("pk", flat=True)[:limit]):
        ended += _expire_one(job_id)
    return ended


def _expire_one(job_id: UUID) -> bool:
    with atomic():
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None:
            return False
        now = clock.read()
        job = locked.job
        verdict = decide_queue_expiry(
            now=now,
            job_state=JobState(job.state),
            bounds=facts.of_bounds(locked),
            on_bound=BoundHit(job.policy.on_bound),
        )
        if isinstance(verdict, Refused):
            return False
        story = JobStory(job, actor="control:expire", now=now)
        endings.close_attempt(
            locked, story=story, outcome=verdict.attempt_outcome, reason=verdict.reason
        )
        endings.end_job(
            story,
            state=verdict.job_state,
            reason=verdict.reason,
            attempt=locked.attempt,
            dead_letter=verdict.dead_letter,
        )
        story.save()
        return True
