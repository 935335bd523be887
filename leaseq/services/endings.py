"""How attempts and jobs end, under their locks: the one way in which leases are given back."""

from datetime import datetime, timedelta
from functools import partial

from django.db.models import F

from leaseq.db.identity import jitter, new_id
from leaseq.db.locks import Locked
from leaseq.db.transactions import on_commit
from leaseq.errors import LeaseqBug
from leaseq.models import Attempt, Lease, OutboxMessage, ProviderRequest
from leaseq.rules import backoff
from leaseq.rules.outcome import (
    Ended,
    LossFacts,
    LossVerdict,
    NextAttempt,
    OutcomeUnknown,
    cause_at_bound,
    decide_loss,
)
from leaseq.rules.transitions import Refused
from leaseq.services import facts, ports, usage
from leaseq.services.events import JobStory
from leaseq.vocabulary import (
    AttemptState,
    BoundHit,
    EndReason,
    JobState,
    LeaseStatus,
    RequestState,
)

NO_TIME = timedelta(0)


def ring_after_commit(*names: str) -> None:
    """Ask for these passes of the control plane once this transaction has committed."""
    for name in names:
        on_commit(partial(_ring, name))


def ring_when_due(name: str, *, due_at: datetime, now: datetime) -> None:
    """Ask for this pass after the commit, and no earlier than it has something to do."""
    seconds = (due_at - now).total_seconds()
    if seconds > 0:
        on_commit(partial(_ring_later, name, seconds))
    else:
        on_commit(partial(_ring, name))


def _ring(name: str) -> None:
    ports.installed().ring(name)


def _ring_later(name: str, seconds: float) -> None:
    ports.installed().ring_later(name, seconds)


def end_leases(locked: Locked, *, status: LeaseStatus, reason: EndReason, now: datetime) -> None:
    """End all live leases of the attempt; those past their time end as expired, then and so."""
    expired = [one.pk for one in locked.leases if one.expires_at <= now]
    others = [one.pk for one in locked.leases if one.expires_at > now]
    ended = 0
    if expired:
        ended += Lease.objects.filter(pk__in=expired, status=LeaseStatus.ACTIVE).update(
            status=LeaseStatus.EXPIRED,
            end_reason=EndReason.LEASE_EXPIRED,
            ended_at=F("expires_at"),
            version=F("version") + 1,
        )
    if others:
        ended += Lease.objects.filter(pk__in=others, status=LeaseStatus.ACTIVE).update(
            status=status, end_reason=reason, ended_at=now, version=F("version") + 1
        )
    if ended != len(locked.leases):
        raise LeaseqBug("a locked lease changed under its lock", attempt_id=locked.attempt.pk)


def close_attempt(
    locked: Locked,
    *,
    story: JobStory,
    outcome: AttemptState,
    reason: EndReason,
    result: object = None,
    error: str = "",
) -> None:
    """Close the attempt, end its leases, and book the time and renewals it used to the job."""
    attempt, now = locked.attempt, story.now
    changed = Attempt.objects.filter(pk=attempt.pk, state=attempt.state).update(
        state=outcome, reason=reason, ended_at=now, result=result, error=error
    )
    if changed != 1:
        raise LeaseqBug("a locked attempt changed under its lock", attempt_id=attempt.pk)
    gave_up = outcome in (AttemptState.COMPLETED, AttemptState.COMPLETED_AFTER_CANCEL)
    status = LeaseStatus.RELEASED if gave_up or reason in _GIVEN_BACK else LeaseStatus.REVOKED
    lease_reason = reason if status == LeaseStatus.RELEASED else EndReason.ATTEMPT_ENDED
    end_leases(locked, status=status, reason=lease_reason, now=now)
    _book_time(locked, story)
    OutboxMessage.objects.filter(attempt=attempt).delete()
    attempt.state, attempt.ended_at = outcome, now


_GIVEN_BACK = frozenset(
    {
        EndReason.TASK_ERROR,
        EndReason.TASK_RETRY,
        EndReason.RESULT_NOT_JSON,
        EndReason.RESULT_TOO_LARGE,
        EndReason.CANCELLED,
        EndReason.WORKER_SHUTDOWN,
        EndReason.PROVIDER_FAILED,
        EndReason.PROVIDER_REJECTED,
    }
)


def _book_time(locked: Locked, story: JobStory) -> None:
    attempt, job, now = locked.attempt, locked.job, story.now
    if attempt.reserved_at is not None:
        # An unknown attempt gave its leases back when it became unknown.
        until = attempt.unknown_since or now
        story.change(
            reserved_time_used=job.reserved_time_used + max(until - attempt.reserved_at, NO_TIME)
        )
    story.change(renewals_used=job.renewals_used + renewals_of(locked))
    stop_queue_clock(story)


def renewals_of(locked: Locked) -> int:
    """Return how often the live leases of this attempt were renewed, predecessors included."""
    return max((one.renewals_before + one.renewal_count for one in locked.leases), default=0)


def stop_queue_clock(story: JobStory) -> None:
    """Book the time waited since the clock last started; it runs again at re-admission (M7)."""
    job = story.job
    if job.waiting_since is None:
        return
    story.change(
        queue_time_used=job.queue_time_used + max(story.now - job.waiting_since, NO_TIME),
        waiting_since=None,
        queue_deadline_at=None,
    )


def end_job(
    story: JobStory, *, state: JobState, reason: EndReason, attempt: Attempt, dead_letter: bool
) -> None:
    """End the job; its hold is closed later, by the settle pass and its verdict (L7)."""
    stop_queue_clock(story)
    story.change(ended_at=story.now, settle_at=story.now, reason=reason, dead_letter=dead_letter)
    story.tell(str(state), to_state=state, attempt_id=attempt.pk, reason=reason)
    ring_after_commit("schedule", "settle")


def open_next_attempt(story: JobStory, *, verdict: NextAttempt, closed: Attempt) -> Attempt:
    """Open the next attempt: the job is admitted again with its old age (SPEC M6)."""
    job = story.job
    waiting_since = max(story.now, verdict.not_before)
    attempt = Attempt.objects.create(
        id=new_id(), job=job, number=closed.number + 1, opened_at=story.now
    )
    story.change(
        current_attempt_number=attempt.number,
        not_before=verdict.not_before,
        waiting_since=waiting_since,
        queue_deadline_at=waiting_since + (job.queue_age_max - job.queue_time_used),
    )
    story.tell(
        "readmitted",
        to_state=JobState.ADMITTED,
        attempt_id=attempt.pk,
        reason=verdict.reason,
        closed=str(closed.pk),
        outcome=str(verdict.attempt_outcome),
    )
    # The slot that came free is for others now; the job itself waits out its backoff.
    ring_after_commit("schedule")
    ring_when_due("schedule", due_at=verdict.not_before, now=story.now)
    return attempt


def lose(
    locked: Locked, *, story: JobStory, cause: EndReason, holder_stopped: bool, error: str = ""
) -> LossVerdict | Refused:
    """End an attempt that has no result, as the rule says, and write it all (SPEC B7, B9)."""
    request = ProviderRequest.objects.filter(attempt=locked.attempt).first()
    cause = cause_at_bound(
        cause,
        bounds=facts.of_bounds(locked),
        expires_at=max((one.expires_at for one in locked.leases), default=None),
    )
    if locked.attempt.worker_id is None:
        holder_stopped = True
    verdict = decide_loss(
        _loss_facts(locked, story.now, cause=cause, request=request, stopped=holder_stopped)
    )
    if isinstance(verdict, Refused):
        return verdict
    if isinstance(verdict, OutcomeUnknown):
        _become_unknown(locked, story, verdict, request)
        return verdict
    _book_usage_so_far(locked, story, request, verdict)
    # The attempt keeps its own cause, also where the job ends by a bound, as max_attempts.
    cancelled = verdict.attempt_outcome is AttemptState.CANCELLED
    close_attempt(
        locked,
        story=story,
        outcome=verdict.attempt_outcome,
        reason=EndReason.CANCELLED if cancelled else cause,
        error=error,
    )
    if isinstance(verdict, NextAttempt):
        open_next_attempt(story, verdict=verdict, closed=locked.attempt)
    else:
        end_job(
            story,
            state=verdict.job_state,
            reason=verdict.reason,
            attempt=locked.attempt,
            dead_letter=verdict.dead_letter,
        )
    return verdict


def _loss_facts(
    locked: Locked,
    now: datetime,
    *,
    cause: EndReason,
    request: ProviderRequest | None,
    stopped: bool,
) -> LossFacts:
    job, attempt, policy = locked.job, locked.attempt, locked.job.policy
    return LossFacts(
        now=now,
        job_state=JobState(job.state),
        attempt_state=AttemptState(attempt.state),
        cause=cause,
        had_capacity=attempt.claimed_at is not None,
        attempts_counted=job.attempts_counted,
        attempts_max=policy.attempts_max,
        possibly_sent=attempt.possibly_sent,
        provider_terminal=request is not None and request.ended_at is not None,
        ends_with_connection=request is not None and request.ends_with_connection,
        holder_stopped=stopped,
        cancel_asked=job.cancel_asked_at is not None,
        readmit_by_policy=policy.readmit_on_bound,
        renewals_left=policy.renewals_max - job.renewals_used - renewals_of(locked),
        on_bound=BoundHit(policy.on_bound),
        bounds=facts.of_bounds(locked),
        retry_delay=backoff.delay(
            max(1, job.attempts_counted),
            base=policy.retry_base,
            cap=policy.retry_cap,
            jitter=jitter(),
        ),
    )


def _become_unknown(
    locked: Locked, story: JobStory, verdict: OutcomeUnknown, request: ProviderRequest | None
) -> None:
    """Leases end, the job keeps its state, and no next attempt opens until a verdict (L5)."""
    attempt = locked.attempt
    if attempt.state == AttemptState.OUTCOME_UNKNOWN:
        return
    end_leases(locked, status=LeaseStatus.REVOKED, reason=EndReason.ATTEMPT_ENDED, now=story.now)
    # The verdict comes when these leases have ended, and would find no renewals to book.
    story.change(renewals_used=locked.job.renewals_used + renewals_of(locked))
    changed = Attempt.objects.filter(pk=attempt.pk, state=AttemptState.OPEN).update(
        state=AttemptState.OUTCOME_UNKNOWN, unknown_since=story.now
    )
    if changed != 1:
        raise LeaseqBug("a locked attempt changed under its lock", attempt_id=attempt.pk)
    if request is not None:
        ProviderRequest.objects.filter(pk=request.pk, state=RequestState.PREPARED).update(
            state=RequestState.UNKNOWN
        )
    OutboxMessage.objects.filter(attempt=attempt).delete()
    story.tell("outcome_unknown", attempt_id=attempt.pk, reason=verdict.reason)
    ring_after_commit("schedule")


def _book_usage_so_far(
    locked: Locked,
    story: JobStory,
    request: ProviderRequest | None,
    verdict: NextAttempt | Ended,
) -> None:
    """Close the request that ended with its holder, and book what was seen of its usage (L5a)."""
    if request is None or request.ended_at is not None:
        return
    given_up = verdict.reason == EndReason.MONITORING_ENDED
    state = RequestState.MONITORING_ENDED if given_up else RequestState.ABORTED
    changed = ProviderRequest.objects.filter(pk=request.pk, state=request.state).update(
        state=state, ended_at=story.now, detail=f"ended with its holder: {verdict.reason}"
    )
    if changed != 1:
        raise LeaseqBug("a locked request changed under its lock", request_id=request.pk)
    usage.book(
        locked.attempt,
        job=locked.job,
        provider=request.provider,
        model=request.model,
        quantities=usage.sound(locked.attempt.progress.get("usage", {})),
        now=story.now,
    )
