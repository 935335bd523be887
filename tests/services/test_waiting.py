from collections.abc import Callable
from datetime import timedelta

import pytest

from leaseq.models import Job, OutboxMessage, PermitPool, ServingPolicy
from leaseq.services import scheduling
from leaseq.vocabulary import (
    AttemptState,
    BoundHit,
    EndReason,
    JobState,
    LeaseStatus,
    PoolKind,
)
from tests.services import stages
from tests.services.aging import let_pass

pytestmark = pytest.mark.django_db
Admit = Callable[..., Job]
SECOND = timedelta(seconds=1)


def pool(kind: PoolKind, key: str, *, limit: int) -> PermitPool:
    return PermitPool.objects.create(kind=kind, key=key, limit=limit)


@pytest.mark.parametrize(
    ("short_of", "ends"),
    [
        pytest.param(SECOND, False, id="just before"),
        pytest.param(timedelta(0), True, id="at the deadline"),
        pytest.param(-SECOND, True, id="after it"),
    ],
)
def test_a_job_waits_until_its_queue_deadline_and_no_longer(
    admit: Admit, policy: ServingPolicy, short_of: timedelta, ends: bool
) -> None:
    """Case E4, the second half: it waited too long, and is never dispatched."""
    job = admit()
    let_pass(policy.queue_age_max - short_of)

    assert scheduling.expire_waiting(limit=10) == int(ends)

    job.refresh_from_db()
    attempt = job.attempts.get()
    if not ends:
        assert (job.state, attempt.state) == (JobState.ADMITTED, AttemptState.OPEN)
        return
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.EXPIRED,
        EndReason.MAX_QUEUE_AGE,
        True,
    )
    assert (attempt.state, attempt.reason) == (AttemptState.EXPIRED, EndReason.MAX_QUEUE_AGE)
    assert job.queue_time_used >= policy.queue_age_max
    assert scheduling.reserve("gpu", limit=1).queued == []
    assert scheduling.expire_waiting(limit=10) == 0


def test_a_queued_job_past_its_deadline_gives_its_permits_and_its_message_back(
    admit: Admit, policy: ServingPolicy
) -> None:
    narrow = pool(PoolKind.QUEUE, "gpu", limit=1)
    ServingPolicy.objects.update(on_bound=BoundHit.FAIL)
    job = admit()
    stages.queue_up()
    let_pass(policy.queue_age_max)

    assert scheduling.expire_waiting(limit=10) == 1

    job.refresh_from_db()
    assert (job.state, job.dead_letter) == (JobState.EXPIRED, False)
    assert narrow.leases.filter(status=LeaseStatus.ACTIVE).count() == 0
    assert OutboxMessage.objects.count() == 0


def test_waits_are_ended_up_to_the_limit_oldest_first(admit: Admit, policy: ServingPolicy) -> None:
    oldest = admit()
    admit()
    let_pass(policy.queue_age_max)

    assert scheduling.expire_waiting(limit=1) == 1
    oldest.refresh_from_db()
    assert oldest.state == JobState.EXPIRED
