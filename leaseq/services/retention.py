"""Erase what callers gave and got once its retention is over (SPEC G1)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from leaseq.conf import settings
from leaseq.db import clock, locks
from leaseq.db.transactions import atomic
from leaseq.models import Attempt
from leaseq.services.events import JobStory

NO_PAYLOAD: Mapping[str, Any] = {"args": [], "kwargs": {}}


def erase(job_id: UUID, *, actor: str) -> bool:
    """Erase the payload and results of a settled job that ended longer than the retention ago.

    The job, its events, usage and ledger stay, and so does the payload's digest: a repeated
    idempotency key still finds its job. An erased job is never admitted again. Returns False
    where this was not due, was done, or another session is at work on the job.
    """
    with atomic():
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None:
            return False
        job, now = locked.job, clock.read()
        keep = timedelta(days=settings().retention_days)
        over = job.ended_at is not None and job.ended_at <= now - keep
        if not over or job.settled_at is None or job.erased_at is not None:
            return False
        story = JobStory(job, actor=actor, now=now)
        results = Attempt.objects.filter(job=job, result__isnull=False).update(result=None)
        story.change(payload=dict(NO_PAYLOAD), erased_at=now)
        story.tell("payload_erased", results=results)
        story.save()
    return True
