from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from leaseq.db import clock
from leaseq.models import Account, Hold, Job, Lease, OutboxMessage, PermitPool, ServingPolicy
from leaseq.services import leases, scheduling, workers
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
    PoolKind,
    ResourceType,
)
from tests.conftest import register_worker
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Admit = Callable[..., Job]
SECOND = timedelta(seconds=1)


@pytest.fixture
def rival(db: None) -> Account:
    return Account.objects.create(name="rival", currency="EUR", limit=Decimal(100))


def pool(kind: PoolKind, key: str, *, limit: int) -> PermitPool:
    return PermitPool.objects.create(kind=kind, key=key, limit=limit)


def live_permits(of: PermitPool) -> int:
    now = clock.read()
    return of.leases.filter(status=LeaseStatus.ACTIVE, expires_at__gt=now).count()


def test_a_reservation_grants_a_permit_of_each_pool_and_writes_a_message(
    admit: Admit, job: Job
) -> None:
    pools = [
        pool(PoolKind.ACCOUNT, "acme", limit=3),
        pool(PoolKind.QUEUE, "gpu", limit=3),
        pool(PoolKind.POLICY, "batch", limit=3),
        pool(PoolKind.PROVIDER, "local", limit=3),
    ]
    pool(PoolKind.QUEUE, "another", limit=3)

    reserved = scheduling.reserve("gpu", limit=10)

    assert reserved.queued == [job.pk]
    job.refresh_from_db()
    attempt = job.attempts.get()
    assert job.state == JobState.QUEUED
    assert job.first_reserved_at == attempt.reserved_at
    permits = Lease.objects.filter(attempt=attempt)
    assert {one.pool_id for one in permits} == {one.pk for one in pools}
    assert {(one.resource_type, one.worker_id) for one in permits} == {(ResourceType.PERMIT, None)}
    assert all(one.expires_at - one.created_at == job.policy.lease_ttl for one in permits)
    assert len({one.fence for one in permits}) == 4
    message = OutboxMessage.objects.get()
    assert (message.attempt_id, message.task, message.queue, message.sends) == (
        attempt.pk,
        "tests.nothing",
        "gpu",
        0,
    )
    kinds = job.events.order_by("version").values_list("kind", "from_state", "to_state")
    assert list(kinds) == [
        ("admitted", None, "admitted"),
        ("reserved", "admitted", "reserved"),
        ("queued", "reserved", "queued"),
    ]


def test_a_reservation_leaves_age_deadline_and_money_alone(job: Job) -> None:
    fixed = ["submitted_at", "waiting_since", "queue_deadline_at", "priority", "cost_ceiling"]
    before = Job.objects.values(*fixed).get()
    money = photograph("leaseq_hold") | photograph("leaseq_account")

    scheduling.reserve("gpu", limit=1)

    assert Job.objects.values(*fixed).get() == before
    assert photograph("leaseq_hold") | photograph("leaseq_account") == money


def test_priority_goes_before_fair_share_and_that_before_age(admit: Admit, rival: Account) -> None:
    first, second, third = admit(), admit(), admit()
    of_rival = admit(account="rival")
    urgent = admit(priority=5)

    # One urgent job of acme is active by then, so the rival's turn comes first.
    assert scheduling.reserve("gpu", limit=10).queued == [
        urgent.pk,
        of_rival.pk,
        first.pk,
        second.pk,
        third.pk,
    ]


def test_accounts_take_turns_and_the_oldest_of_each_goes_first(
    admit: Admit, rival: Account
) -> None:
    ours = [admit() for _ in range(4)]
    theirs = [admit(account="rival") for _ in range(2)]

    order = scheduling.reserve("gpu", limit=10).queued

    expected = [ours[0], theirs[0], ours[1], theirs[1], ours[2], ours[3]]
    assert order == [one.pk for one in expected]


def test_what_an_account_holds_already_counts_against_its_turn(
    admit: Admit, rival: Account, worker: Registered
) -> None:
    for index in range(2):
        admit()
        stages.run(stages.queue_up()[0], worker, slot=index)
    waiting = admit()
    newer = admit(account="rival")

    assert scheduling.reserve("gpu", limit=10).queued == [newer.pk, waiting.pk]


def test_the_limit_of_a_pass_takes_the_first_of_the_order(admit: Admit) -> None:
    first, _, urgent = admit(), admit(), admit(priority=1)
    assert scheduling.reserve("gpu", limit=2).queued == [urgent.pk, first.pk]
    assert scheduling.reserve("gpu", limit=0).queued == []


def test_a_queue_takes_only_its_own_jobs(admit: Admit) -> None:
    admit(queue="cpu")
    assert scheduling.reserve("gpu", limit=10).queued == []


def test_renewals_and_a_lost_reservation_move_neither_age_nor_place(
    admit: Admit, worker: Registered
) -> None:
    """Case E3: the oldest waits again after ten renewals, and still goes first."""
    pool(PoolKind.QUEUE, "gpu", limit=1)
    oldest = admit()
    submitted_at = oldest.submitted_at
    stages.queue_up(limit=1)
    younger = [admit(), admit()]
    for _ in range(10):
        let_pass(10 * SECOND)
        submitted_at -= 10 * SECOND
        workers.seen(worker.worker_id)
        assert leases.renew_queued(limit=10) == {"renewed": 1}
    let_pass(30 * SECOND, job=oldest)
    submitted_at -= 30 * SECOND
    leases.expire(oldest.pk, actor="control:expire")
    # The backoff after the loss is over.
    let_pass(2 * SECOND)
    submitted_at -= 2 * SECOND

    order = []
    for _ in range(3):
        (queued,) = stages.queue_up(limit=1)
        order.append(queued.pk)
        PermitPool.objects.update(limit=len(order) + 1)

    assert order == [oldest.pk, *(one.pk for one in younger)]
    oldest.refresh_from_db()
    assert oldest.submitted_at == submitted_at
    assert oldest.current_attempt_number == 2
    assert oldest.attempts_counted == 0


def test_a_job_without_a_free_permit_keeps_its_place_and_nothing_of_it_changes(
    admit: Admit,
) -> None:
    pool(PoolKind.QUEUE, "gpu", limit=1)
    first, second = admit(), admit()
    assert scheduling.reserve("gpu", limit=10).queued == [first.pk]
    before = photograph()

    reserved = scheduling.reserve("gpu", limit=10)

    assert (reserved.queued, reserved.refused) == ([], {"no_permit_free": 1})
    assert photograph() == before
    assert Job.objects.get(pk=second.pk).state == JobState.ADMITTED


def test_a_crowd_whose_pool_is_full_hides_nobody_else(admit: Admit, rival: Account) -> None:
    """Case D8: sixty jobs stand before the one that can go."""
    pool(PoolKind.ACCOUNT, "acme", limit=0)
    for _ in range(60):
        admit(priority=9, cost_ceiling=0)
    free = admit(account="rival", priority=-9)

    assert scheduling.reserve("gpu", limit=1).queued == [free.pk]


def test_a_long_line_is_gone_through_in_parts(
    admit: Admit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "LOCKED_AT_ONCE", 2)
    jobs = [admit() for _ in range(5)]

    assert scheduling.reserve("gpu", limit=4).queued == [one.pk for one in jobs[:4]]
    assert scheduling.reserve("gpu", limit=4).queued == [jobs[4].pk]


def test_a_limit_lowered_below_use_takes_nothing_away_and_grants_nothing(
    admit: Admit, worker: Registered
) -> None:
    """Case R7: five live, the limit goes to two; the next grant comes below two."""
    narrow = pool(PoolKind.QUEUE, "gpu", limit=5)
    for _ in range(6):
        admit()
    held = stages.queue_up()
    assert len(held) == 5
    PermitPool.objects.update(limit=2)

    granted_after = []
    for left, job in zip([4, 3, 2, 1], held, strict=False):
        leases_before = live_permits(narrow)
        assert leases_before == left + 1
        let_pass(31 * SECOND, job=job)
        leases.expire(job.pk, actor="control:expire")
        assert live_permits(narrow) == left
        # What was just lost waits out its backoff, so only the sixth job can be reserved.
        granted_after += [left] * len(scheduling.reserve("gpu", limit=10).queued)

    assert granted_after == [1]
    assert live_permits(narrow) == 2


def test_expired_permits_do_not_block_though_nobody_swept_them(admit: Admit) -> None:
    narrow = pool(PoolKind.QUEUE, "gpu", limit=1)
    first = admit()
    scheduling.reserve("gpu", limit=1)
    second = admit()
    assert scheduling.reserve("gpu", limit=1).queued == []

    let_pass(30 * SECOND, job=first)

    assert scheduling.reserve("gpu", limit=1).queued == [second.pk]
    assert narrow.leases.filter(status=LeaseStatus.ACTIVE).count() == 2
    assert live_permits(narrow) == 1


def test_a_job_for_later_is_passed_over_until_it_is_due(admit: Admit) -> None:
    job = admit(not_before=clock.read() + 60 * SECOND)
    assert scheduling.reserve("gpu", limit=1).queued == []

    let_pass(60 * SECOND)

    assert scheduling.reserve("gpu", limit=1).queued == [job.pk]


def test_under_a_closed_policy_jobs_wait_and_under_an_open_one_they_go(job: Job) -> None:
    ServingPolicy.objects.update(is_open=False)
    assert scheduling.reserve("gpu", limit=1).queued == []

    ServingPolicy.objects.update(is_open=True)
    assert scheduling.reserve("gpu", limit=1).queued == [job.pk]


def test_without_an_open_hold_nothing_is_reserved(job: Job) -> None:
    Hold.objects.update(
        state=HoldState.RELEASED,
        held=0,
        released=Decimal(1),
        closed_at=clock.read(),
        reason=EndReason.NEVER_SENT,
    )

    reserved = scheduling.reserve("gpu", limit=1)

    assert (reserved.queued, reserved.refused) == ([], {"hold_not_open": 1})


def test_a_hold_past_its_time_reserves_nothing(admit: Admit, policy: ServingPolicy) -> None:
    ServingPolicy.objects.update(hold_ttl=timedelta(hours=1))
    job = admit()
    let_pass(timedelta(hours=1))
    before = photograph()

    reserved = scheduling.reserve("gpu", limit=1)

    assert (reserved.queued, reserved.refused) == ([], {"hold_expired": 1})
    assert photograph() == before
    assert Job.objects.get().pk == job.pk


def test_a_job_whose_reserved_life_is_over_ends_instead_of_being_reserved(
    admit: Admit, policy: ServingPolicy
) -> None:
    pool(PoolKind.QUEUE, "gpu", limit=5)
    job = admit()
    stages.queue_up()
    let_pass(30 * SECOND)
    leases.expire(job.pk, actor="control:expire")
    let_pass(policy.lease_life_max)

    assert scheduling.reserve("gpu", limit=1).queued == []

    job.refresh_from_db()
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_LEASE_LIFE,
        True,
    )


def test_ten_jobs_are_reserved_in_a_known_number_of_statements(
    admit: Admit, django_assert_num_queries: Callable[[int], Any]
) -> None:
    pool(PoolKind.QUEUE, "gpu", limit=20)
    for _ in range(10):
        admit()
    # Seventeen for the batch, and two for each job: its row and its events.
    with django_assert_num_queries(37):
        assert len(scheduling.reserve("gpu", limit=10).queued) == 10


def test_room_is_free_slots_and_a_little_ahead_less_what_is_on_its_way(
    admit: Admit, worker: Registered
) -> None:
    assert scheduling.room("gpu", now=clock.read()) == 4
    for _ in range(3):
        admit()
    queued = stages.queue_up()
    assert scheduling.room("gpu", now=clock.read()) == 1
    stages.claim(queued[0], worker)
    assert scheduling.room("gpu", now=clock.read()) == 1
    workers.drain(worker.worker_id)
    assert scheduling.room("gpu", now=clock.read()) < 0
    register_worker("gpu2@here", slots=1)
    assert scheduling.room("gpu", now=clock.read()) == 0
