"""Ask for a cancellation; before the claim it is done at once (SPEC E8, M1)."""

from uuid import UUID

from leaseq.db import clock, locks
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug, TransitionRefused
from leaseq.rules import attempts as rules
from leaseq.rules.outcome import Ended
from leaseq.rules.transitions import Refused
from leaseq.services import endings, facts
from leaseq.services.events import JobStory
from leaseq.vocabulary import EndReason, JobState, TransitionRefusal


def ask(job_id: UUID, *, actor: str, reason: str) -> JobState:
    """Cancel a job that nobody runs, or ask its owner to stop; safe to repeat.

    Returns the job's state after it: `cancelled`, or the state in which it now follows the
    request. Raises TransitionRefused for an unknown job, or one that ended otherwise, having
    changed nothing.
    """
    if not actor.strip() or not reason.strip():
        raise TransitionRefused(
            "a cancellation says who asks for it and why: pass actor and reason",
            reason=TransitionRefusal.BAD_REPORT,
            job_id=job_id,
        )
    with atomic():
        locked = locks.by_job(job_id)
        if locked is None:
            raise TransitionRefused(
                "no such job", reason=TransitionRefusal.UNKNOWN_JOB, job_id=job_id
            )
        now = clock.read()
        story = JobStory(locked.job, actor=actor, now=now)
        verdict = rules.decide_cancel_request(facts.of_attempt(locked, now=now))
        match verdict:
            case Refused() if locked.job.state == JobState.CANCELLED:
                return JobState.CANCELLED
            case Refused(reason=why):
                raise TransitionRefused(
                    f"not cancelled: the job is {locked.job.state}", reason=why, job_id=job_id
                )
            case rules.AlreadyAsked():
                return JobState(locked.job.state)
            case rules.AskCancel():
                story.change(cancel_asked_at=now)
                story.tell("cancel_asked", attempt_id=locked.attempt.pk, reason=reason)
            case rules.CancelNow():
                story.change(cancel_asked_at=now)
                story.tell("cancel_asked", attempt_id=locked.attempt.pk, reason=reason)
                ended = endings.lose(
                    locked, story=story, cause=EndReason.CANCELLED, holder_stopped=True
                )
                if not isinstance(ended, Ended) or ended.job_state is not JobState.CANCELLED:
                    raise LeaseqBug("a waiting job could not be cancelled", job_id=job_id)
        story.save()
        return JobState(locked.job.state)
