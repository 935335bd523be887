"""Renew in bulk and expire: both decided by one rule under the row locks (SPEC B4-B9)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import OperationalError

from leaseq.db import clock, locks
from leaseq.db import renew_many as statements
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug
from leaseq.queries import leases as lease_queries
from leaseq.rules import bounds
from leaseq.rules.bounds import JobBounds, Remaining
from leaseq.rules.outcome import LossVerdict, OutcomeUnknown
from leaseq.rules.ownership import Fence, OwnerProof
from leaseq.rules.renewal import (
    AlreadyRenewed,
    Refused,
    RenewalFacts,
    Renewed,
    Stage,
    decide_renewal,
)
from leaseq.rules.transitions import Refused as TransitionRefusedVerdict
from leaseq.services import endings, facts
from leaseq.services.events import JobStory
from leaseq.vocabulary import (
    EXECUTING_JOB_STATES,
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    RenewalRefusal,
    WorkerState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Another session holds the rows: nothing is known, and the owner asks again soon."""

    remaining: None = None


Verdict = Renewed | AlreadyRenewed | Refused | Unanswered
HOLDER_OVER = frozenset({WorkerState.DEAD, WorkerState.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """An owner's wish to keep what it holds of one attempt, proved by its slot's lease.

    `key` makes a repeat harmless (SPEC B5); `cancel_follow` is the owner's word that it is
    stopping the task of a cancelled job (SPEC B4a).
    """

    proof: OwnerProof
    key: str | None = None
    expected_version: int | None = None
    cancel_follow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one renewal: the verdict on the named lease, and the time it has left.

    `left` is the least remaining time of all leases of the attempt, by the authority's clock;
    `stop_grace` is the policy's time from the cooperative stop to the hard one.
    """

    lease_id: UUID
    verdict: Verdict
    left: timedelta
    remaining: Remaining | None
    cancel_asked: bool
    stop_grace: timedelta | None


def renew_many(renewals: Sequence[Renewal]) -> list[Answer]:
    """Renew all leases of many attempts in a handful of statements (SPEC B8).

    Each attempt is judged by the lease that its owner names; its permits follow if they have the
    same owner. Answers come in the order asked; a refusal, or rows that another session holds for
    long (`Unanswered`), never harm another attempt.
    """
    if not renewals:
        return []
    try:
        return _renew_together(renewals)
    except OperationalError as error:
        if not locks.timed_out(error):
            raise
    # Somebody holds one of the rows: renew one by one, so that only theirs have no answer.
    return [_renew_alone(one) for one in renewals]


def _renew_alone(renewal: Renewal) -> Answer:
    try:
        return _renew_together([renewal])[0]
    except OperationalError as error:
        if not locks.timed_out(error):
            raise
        return _answer(renewal, Unanswered(), None, left=timedelta(0))


def _renew_together(renewals: Sequence[Renewal]) -> list[Answer]:
    with atomic():
        locks.wait_at_most(locks.SHORTLY_MS)
        rows = statements.lock_of_attempts(
            list({one.proof.attempt_id for one in renewals}),
            [one.proof.lease_id for one in renewals],
        )
        now = clock.read()
        by_id = {row.id: row for row in rows}
        by_attempt = defaultdict(list)
        for row in rows:
            by_attempt[row.attempt_id].append(row)
        answers = []
        # By lease: a wish that stands twice in one batch has one effect (SPEC B5).
        extensions: dict[UUID, statements.Extension] = {}
        for one in renewals:
            named = by_id.get(one.proof.lease_id)
            answer, more = _judge_attempt(one, named, by_attempt[one.proof.attempt_id], now=now)
            answers.append(answer)
            extensions |= {extension.lease_id: extension for extension in more}
        _write(list(extensions.values()), now=now)
    return answers


def renew_queued(*, limit: int) -> dict[str, int]:
    """Renew the control plane's due leases: permits of jobs that wait in a queue (SPEC B8, N).

    Returns counts by verdict: `renewed`, the reason of a refusal, or `not_due` for what another
    pass renewed while this one waited for the rows: two passes renew as often as one.
    """
    counts: dict[str, int] = defaultdict(int)
    with atomic():
        rows = statements.lock_due_of_control_plane(limit)
        now = clock.read()
        served = lease_queries.lately_served_queues(now=now) if rows else set()
        extensions = []
        for row in rows:
            if now < row.expires_at - row.lease_ttl + row.renew_every:
                counts["not_due"] += 1
                continue
            verdict = decide_renewal(
                _facts(row, now=now, renewal=_own(row), has_live_worker=row.queue in served)
            )
            if isinstance(verdict, Renewed):
                extensions.append(_extension(row, verdict, key=None))
            reason = verdict.reason if isinstance(verdict, Refused) else "renewed"
            counts[str(reason)] += 1
        _write(extensions, now=now)
    return dict(counts)


def _own(row: Any) -> Renewal:
    return Renewal(proof=_proof(row))


def _proof(row: Any) -> OwnerProof:
    return OwnerProof(
        lease_id=row.id,
        attempt_id=row.attempt_id,
        fence=Fence(epoch=row.fence_epoch, counter=row.fence),
    )


def _judge_attempt(
    renewal: Renewal, named: Any, rows: list[Any], *, now: datetime
) -> tuple[Answer, list[statements.Extension]]:
    if named is None:
        verdict: Verdict = Refused(reason=RenewalRefusal.UNKNOWN_LEASE, remaining=None)
        return _answer(renewal, verdict, named, left=timedelta(0)), []
    verdict = decide_renewal(_facts(named, now=now, renewal=renewal, has_live_worker=True))
    if isinstance(verdict, Refused):
        # Whoever is not the owner, or owns it no more, has no time left.
        holds = verdict.remaining is not None and named.status == LeaseStatus.ACTIVE
        left = named.expires_at - now if holds else timedelta(0)
        return _answer(renewal, verdict, named, left=left), []
    left = verdict.expires_at - now
    renewed = isinstance(verdict, Renewed)
    extensions = (
        [_extension(named, verdict, key=renewal.key)] if isinstance(verdict, Renewed) else []
    )
    for row in rows:
        if row.id == named.id or row.worker_id != named.worker_id:
            continue
        follower = Renewal(proof=_proof(row), key=renewal.key, cancel_follow=renewal.cancel_follow)
        follows = decide_renewal(_facts(row, now=now, renewal=follower, has_live_worker=True))
        if isinstance(follows, Refused):
            left = min(left, row.expires_at - now)
            continue
        left = min(left, follows.expires_at - now)
        if renewed and isinstance(follows, Renewed):
            extensions.append(_extension(row, follows, key=renewal.key))
    return _answer(renewal, verdict, named, left=left), extensions


def _answer(renewal: Renewal, verdict: Verdict, row: Any, *, left: timedelta) -> Answer:
    return Answer(
        lease_id=renewal.proof.lease_id,
        verdict=verdict,
        left=max(left, timedelta(0)),
        remaining=verdict.remaining,
        cancel_asked=row is not None
        and verdict.remaining is not None
        and row.cancel_asked_at is not None,
        stop_grace=None if row is None else row.stop_grace,
    )


def _extension(row: Any, verdict: Renewed, *, key: str | None) -> statements.Extension:
    return statements.Extension(
        lease_id=row.id,
        version=row.version,
        epoch=row.fence_epoch,
        fence=row.fence,
        expires_at=verdict.expires_at,
        key=key,
    )


def _write(extensions: list[statements.Extension], *, now: datetime) -> None:
    if extensions and statements.write(extensions, now=now) != len(extensions):
        raise LeaseqBug("a locked lease changed under its lock", count=len(extensions))


def _facts(row: Any, *, now: datetime, renewal: Renewal, has_live_worker: bool) -> RenewalFacts:
    state = JobState(row.job_state)
    stop_at = None
    if row.cancel_asked_at is not None:
        stop_at = row.cancel_asked_at + row.stop_grace + row.lease_ttl
    return RenewalFacts(
        now=now,
        proof=renewal.proof,
        expected_version=renewal.expected_version,
        renewal_key=renewal.key,
        lease=facts.of_lease(row),
        attempt_state=AttemptState(row.attempt_state),
        job_state=state,
        cancel_asked_at=row.cancel_asked_at,
        cancel_follow=renewal.cancel_follow,
        stop_at=stop_at,
        policy_open=row.is_open,
        ttl=row.lease_ttl,
        bounds=_bounds(row),
        renewals_max=row.renewals_max,
        renewals_used=row.renewals_used,
        stage=Stage.EXECUTING if state in EXECUTING_JOB_STATES else Stage.WAITING,
        has_live_worker=has_live_worker,
    )


def _bounds(row: Any) -> JobBounds:
    return JobBounds(
        waiting_since=row.waiting_since,
        queue_time_used=row.queue_time_used,
        queue_age_max=row.queue_age_max,
        first_reserved_at=row.job_first_reserved_at,
        lease_life_max=row.lease_life_max,
        reserved_at=row.reserved_at,
        reserved_time_used=row.reserved_time_used,
        reserved_time_max=row.reserved_time_max,
        accepted_at=row.accepted_at,
        provider_wait_max=row.provider_wait_max,
        started_at=row.started_at,
        run_time_max=row.run_time_max,
        progress_at=row.progress_at,
        stall_limit=row.stall_limit,
    )


def expire(job_id: UUID, *, actor: str) -> LossVerdict | None:
    """End the current attempt of a job if one of its leases is past its time (SPEC B9).

    The slot and permits go back; what becomes of the job is the rule's to say. A renewal and an
    expiry that race on one lease: whichever locks first wins. Returns None where nothing was due
    or another session is at work on the job, having changed nothing; safe to repeat.
    """
    with atomic():
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None:
            return None
        now = clock.read()
        if not any(one.expires_at <= now for one in locked.leases):
            return None
        story = JobStory(locked.job, actor=actor, now=now)
        verdict = endings.lose(
            locked,
            story=story,
            cause=_cause(locked, now=now),
            holder_stopped=_holder_is_over(locked),
        )
        if isinstance(verdict, TransitionRefusedVerdict):
            return None
        story.save()
        return verdict


def _cause(locked: locks.Locked, *, now: datetime) -> EndReason:
    """Name why the lease ran out: a bound that stopped its renewal, or the owner's silence."""
    limits = facts.of_bounds(locked)
    due = bounds.hard_deadline(limits)
    if due is not None and due.at <= now:
        return due.reason
    claimed = locked.attempt.claimed_at is not None
    return EndReason.LEASE_EXPIRED if claimed else EndReason.RESERVATION_EXPIRED


def _holder_is_over(locked: locks.Locked) -> bool:
    worker = locked.attempt.worker
    return worker is None or WorkerState(worker.state) in HOLDER_OVER


def resolve_unknown(job_id: UUID, *, actor: str) -> LossVerdict | None:
    """Give an attempt of unknown outcome its verdict (SPEC L5, L5a).

    Once there is evidence, or at the end of monitoring; None where there is neither yet.
    """
    with atomic():
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None or locked.attempt.unknown_since is None:
            return None
        now = clock.read()
        over = now >= locked.attempt.unknown_since + locked.job.policy.uncertain_max
        stopped = _holder_is_over(locked)
        if not (over or stopped):
            return None
        story = JobStory(locked.job, actor=actor, now=now)
        cause = EndReason.HOLDER_STOPPED if stopped else EndReason.MONITORING_ENDED
        verdict = endings.lose(locked, story=story, cause=cause, holder_stopped=stopped)
        if isinstance(verdict, OutcomeUnknown) and over:
            verdict = endings.lose(
                locked, story=story, cause=EndReason.MONITORING_ENDED, holder_stopped=stopped
            )
        if isinstance(verdict, (TransitionRefusedVerdict, OutcomeUnknown)):
            return None
        story.save()
        return verdict
