"""Bring jobs to a stage of their life by the verbs that bring them there."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from leaseq.models import Job
from leaseq.rules.renewal import AlreadyRenewed, Refused, Renewed
from leaseq.services import attempts, outbox, scheduling
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Answer
from leaseq.services.workers import Registered


def queue_up(queue: str = "gpu", *, limit: int = 1000) -> list[Job]:
    """Reserve what waits and take its messages; return the jobs in the order of reservation."""
    queued = scheduling.reserve(queue, limit=limit).queued
    outbox.take_due(limit=limit)
    rows = Job.objects.in_bulk(queued)
    return [rows[one] for one in queued]


def claim(job: Job, worker: Registered, *, slot: int = 0) -> Claimed:
    """Claim the current attempt of a queued job for one slot of a worker."""
    attempt = job.attempts.get(number=Job.objects.get(pk=job.pk).current_attempt_number)
    return attempts.claim(attempt.pk, worker_id=worker.worker_id, slot_id=worker.slot_ids[slot])


def run(job: Job, worker: Registered, *, slot: int = 0) -> Claimed:
    """Claim a queued job and begin it."""
    claimed = claim(job, worker, slot=slot)
    attempts.begin(claimed.proof)
    return claimed


def count_verdicts(answers: Iterable[Answer]) -> dict[str, int]:
    """Count answers by verdict: `renewed`, `already_renewed`, or the reason of a refusal."""
    counts: dict[str, int] = defaultdict(int)
    for answer in answers:
        match answer.verdict:
            case Renewed():
                counts["renewed"] += 1
            case AlreadyRenewed():
                counts["already_renewed"] += 1
            case Refused(reason=reason):
                counts[str(reason)] += 1
    return dict(counts)


def until_true(look: Callable[[], bool], *, within_s: float) -> None:
    """Return once `look` says so; fails after the bound."""
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.05)
