"""What users write against leaseq.api: read by the type checker, and never run.

Each `assert_type` says what an editor shows; the lines below "is refused" carry the code of the
error that the checker must find there, since an ignore that is not needed is an error itself.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type
from uuid import UUID

from leaseq.api import (
    AdmissionRefused,
    Admitted,
    Completion,
    Job,
    JobState,
    Lease,
    OwnershipUncertain,
    ProviderError,
    Refused,
    admit,
    cancel,
    job,
    leased_task,
)
from leaseq.errors import LeaseqError
from leaseq.vocabulary import AdmissionRefusal, Certainty, TransitionRefusal
from leaseq.worker.task import BoundTask, LeasedTask

TOMORROW = datetime(2999, 1, 1, tzinfo=UTC)


@leased_task
def plain(text: str) -> int:
    """Declared without options."""
    return len(text)


@leased_task(
    takes_lease=True,
    provider="private",
    account="acme",
    policy="batch",
    queue="gpu",
    cost_ceiling=Decimal("0.25"),
    name="typing.answer",
    soft_time_limit=60,
)
def answer(lease: Lease, prompt: str) -> dict[str, Any]:
    """Use all of a handle."""
    assert_type(lease.job_id, UUID)
    assert_type(lease.attempt_number, int)
    assert_type(lease.certainty, Certainty)
    if lease.lost:
        lease.guard()
    completion = lease.infer({"messages": [{"role": "user", "content": prompt}]})
    assert_type(completion, Completion)
    lease.progress(step=1, usage={"page": 1})
    lease.record_usage("page", 1, model="small")
    lease.record_usage("second", Decimal("0.5"))
    with lease.fenced():
        Job.objects.count()
    if completion.usage is not None:
        assert_type(completion.usage.completion_tokens, int)
    return {"text": completion.text, "why": completion.finish_reason}


@leased_task(queue="gpu")
def again() -> None:
    """Ask for a retry."""
    raise again.retry(exc=ValueError("not yet"))


def call() -> None:
    """Admit jobs of declared tasks."""
    assert_type(plain, LeasedTask)
    assert_type(answer, LeasedTask)
    assert_type(plain.delay("hello"), Admitted)
    assert_type(plain.apply_async(["hello"], countdown=5), Admitted)
    assert_type(plain.apply_async(kwargs={"text": "hello"}, eta=TOMORROW, priority=3), Admitted)
    bound = plain.using(account="acme", priority=7, idempotency_key="k")
    assert_type(bound, BoundTask)
    assert_type(bound.delay("hello"), Admitted)


def admit_by_name() -> UUID:
    """Admit a job by the name of its task."""
    try:
        admitted = admit(
            "typing.answer",
            args=["hello"],
            kwargs={},
            account="acme",
            policy="batch",
            queue="gpu",
            idempotency_key="k",
            priority=3,
            cost_ceiling="0.25",
            not_before=TOMORROW,
        )
    except AdmissionRefused as refused:
        assert_type(refused.reason, AdmissionRefusal | TransitionRefusal)
        raise
    assert_type(admitted.job_id, UUID)
    assert_type(admitted.created, bool)
    return admitted.job_id


def look_and_cancel(job_id: UUID) -> str:
    """Read a job as it stands, and cancel it."""
    found = job(job_id)
    assert_type(found, Job)
    assert_type(cancel(job_id, actor="user:me", reason="enough"), JobState)
    return JobState(found.state)


def meet(error: LeaseqError) -> str:
    """Tell the errors apart by what to do about them."""
    if isinstance(error, ProviderError):
        return error.outcome
    if isinstance(error, Refused):
        return error.reason
    if isinstance(error, OwnershipUncertain):
        return "ask again"
    return error.message


def is_refused(job_id: UUID, lease: Lease) -> None:
    """Whatever stands here is found by the checker."""
    admit("typing.answer", ["hello"])  # type: ignore[call-arg]
    admit("typing.answer", cost_ceiling=0.25)  # type: ignore[arg-type]
    cancel(job_id)  # type: ignore[call-arg]
    cancel("no id", actor="user:me", reason="")  # type: ignore[arg-type]
    lease.record_usage("page", 0.5)  # type: ignore[arg-type]
    lease.infer("hello")  # type: ignore[arg-type]
    leased_task(takes_lease="yes")  # type: ignore[call-overload]
