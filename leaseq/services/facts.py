"""From locked rows to the facts that the rules decide by."""

from datetime import datetime
from uuid import UUID

from leaseq.db.locks import Locked
from leaseq.models import Hold, Lease
from leaseq.rules.attempts import AttemptFacts, HoldFacts
from leaseq.rules.bounds import JobBounds
from leaseq.rules.ownership import Fence, LeaseFacts
from leaseq.vocabulary import AttemptState, HoldState, JobState, LeaseStatus

# Stands for the current attempt where the locked one is not it: no attempt has this id.
ANOTHER = UUID(int=0)


def of_lease(lease: Lease) -> LeaseFacts:
    """Return the facts of one lease row."""
    return LeaseFacts(
        lease_id=lease.id,
        attempt_id=lease.attempt_id,
        status=LeaseStatus(lease.status),
        fence=Fence(epoch=lease.fence_epoch, counter=lease.fence),
        version=lease.version,
        expires_at=lease.expires_at,
        created_at=lease.created_at,
        first_reserved_at=lease.first_reserved_at,
        renewal_count=lease.renewal_count,
        renewals_before=lease.renewals_before,
        renewal_key=lease.renewal_key,
        renewed_at=lease.renewed_at,
    )


def of_attempt(locked: Locked, *, now: datetime) -> AttemptFacts:
    """Return the facts of a job and the locked attempt, be it the current one or not."""
    job, attempt = locked.job, locked.attempt
    is_current = attempt.number == job.current_attempt_number
    return AttemptFacts(
        now=now,
        job_state=JobState(job.state),
        current_attempt_id=attempt.pk if is_current else ANOTHER,
        attempt_id=attempt.pk,
        attempt_state=AttemptState(attempt.state),
        cancel_asked_at=job.cancel_asked_at,
        possibly_sent=attempt.possibly_sent,
        changed_at=job.changed_at,
    )


def of_hold(hold: Hold | None) -> HoldFacts | None:
    """Return the facts of a job's hold, or None where it has none."""
    if hold is None:
        return None
    return HoldFacts(state=HoldState(hold.state), expires_at=hold.expires_at)


def of_bounds(locked: Locked) -> JobBounds:
    """Return the clocks of a job and its attempt with the limits of its policy."""
    job, attempt, policy = locked.job, locked.attempt, locked.job.policy
    return JobBounds(
        waiting_since=job.waiting_since,
        queue_time_used=job.queue_time_used,
        queue_age_max=job.queue_age_max,
        first_reserved_at=job.first_reserved_at,
        lease_life_max=policy.lease_life_max,
        reserved_at=attempt.reserved_at,
        reserved_time_used=job.reserved_time_used,
        reserved_time_max=policy.reserved_time_max,
        accepted_at=attempt.accepted_at,
        provider_wait_max=policy.provider_wait_max,
        started_at=attempt.started_at,
        run_time_max=policy.run_time_max,
        progress_at=attempt.progress_at,
        stall_limit=policy.stall_limit,
    )
