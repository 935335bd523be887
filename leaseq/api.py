"""The public door: what a project may import of leaseq; nothing else is promised (SPEC K2)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from leaseq.controllers.serve import Completion
from leaseq.errors import (
    AdmissionRefused,
    CancelAsked,
    LeaseqBug,
    LeaseqError,
    Misconfigured,
    OwnershipLost,
    OwnershipUncertain,
    ProviderError,
    Refused,
    TransitionRefused,
    Unavailable,
)
from leaseq.models import Job
from leaseq.services import cancellation
from leaseq.services.admission import Admitted
from leaseq.vocabulary import JobState
from leaseq.worker import task as tasks
from leaseq.worker.handle import Lease
from leaseq.worker.task import leased_task

__all__ = [
    "AdmissionRefused",
    "Admitted",
    "CancelAsked",
    "Completion",
    "Job",
    "JobState",
    "Lease",
    "LeaseqBug",
    "LeaseqError",
    "Misconfigured",
    "OwnershipLost",
    "OwnershipUncertain",
    "ProviderError",
    "Refused",
    "TransitionRefused",
    "Unavailable",
    "admit",
    "cancel",
    "job",
    "leased_task",
]


def admit(
    task: str,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    account: str | None = None,
    policy: str | None = None,
    queue: str | None = None,
    idempotency_key: str | None = None,
    priority: int = 0,
    cost_ceiling: Decimal | int | str | None = None,
    not_before: datetime | None = None,
) -> Admitted:
    """Admit a job of a leased task: job, first attempt and hold in one transaction (SPEC A2).

    Inside the caller's own transaction they stand or fall with it. What is None comes from the
    task's declaration, then from LEASEQ. Raises AdmissionRefused with one reason per cause, and
    Unavailable where the database does not answer; nothing is stored then.
    """
    found = tasks.find(task)
    given = {
        "account": account,
        "policy": policy,
        "queue": queue,
        "idempotency_key": idempotency_key,
        "cost_ceiling": cost_ceiling,
        "not_before": not_before,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return found.admit(args, kwargs or {}, priority=priority, **chosen)


def cancel(job_id: UUID, *, actor: str, reason: str) -> JobState:
    """Cancel a job that nobody runs, or ask its owner to stop; safe to repeat (SPEC E8).

    Returns the job's state after it. Raises TransitionRefused for an unknown or ended job.
    """
    return cancellation.ask(job_id, actor=actor, reason=reason)


def job(job_id: UUID) -> Job:
    """Return a job as it stands at the authority; raises Job.DoesNotExist."""
    return Job.objects.get(pk=job_id)
