from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from leaseq.models import (
    Account,
    Job,
    Lease,
    PermitPool,
    ServingPolicy,
)
from leaseq.rules.ownership import Fence
from leaseq.rules.renewal import AlreadyRenewed, Refused, Renewed
from leaseq.services import attempts, cancellation, leases, workers
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    EndReason,
    LeaseStatus,
    RenewalRefusal,
    ResourceType,
)
from tests.conftest import register_worker
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Admit = Callable[..., Job]
SECOND = timedelta(seconds=1)
NO_TIME = timedelta(0)


def renew(claimed: Claimed, **asked: Any) -> leases.Answer:
    (answer,) = leases.renew_many([Renewal(proof=claimed.proof, **asked)])
    return answer


def refusal(answer: leases.Answer) -> RenewalRefusal:
    assert isinstance(answer.verdict, Refused)
    return answer.verdict.reason


def slot_lease(claimed: Claimed) -> Lease:
    return Lease.objects.get(pk=claimed.proof.lease_id)


def test_a_renewal_moves_the_expiry_and_counts_itself_and_nothing_else(begun: Claimed) -> None:
    let_pass(10 * SECOND)
    before = dict[str, Any](Lease.objects.values().get(pk=begun.proof.lease_id))
    others = photograph()

    answer = renew(begun, key="k1")

    after = dict[str, Any](Lease.objects.values().get(pk=begun.proof.lease_id))
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {"expires_at", "version", "renewal_count", "renewed_at", "renewal_key"}
    assert after["expires_at"] == after["renewed_at"] + 30 * SECOND
    assert (after["version"], after["renewal_count"]) == (2, 1)
    assert isinstance(answer.verdict, Renewed)
    assert answer.left == 30 * SECOND
    assert answer.verdict.remaining.renewals == 9_999
    now = photograph()
    assert {name for name in now if now[name] != others[name]} == {"leaseq_lease"}


def test_the_permits_of_an_attempt_are_renewed_with_its_slot(
    permit: PermitPool, begun: Claimed
) -> None:
    let_pass(10 * SECOND)

    renew(begun)

    live = Lease.objects.filter(status=LeaseStatus.ACTIVE)
    assert {one.resource_type for one in live} == {ResourceType.SLOT, ResourceType.PERMIT}
    assert {one.renewal_count for one in live} == {1}
    assert len({one.expires_at for one in live}) == 1


@pytest.mark.parametrize(
    "again", [pytest.param({"key": "k1"}, id="key"), pytest.param({"expected_version": 1}, id="v")]
)
def test_a_repeated_renewal_has_no_second_effect_and_tells_the_state(
    begun: Claimed, again: dict[str, Any]
) -> None:
    renew(begun, key="k1", expected_version=1)
    before = photograph()

    answer = renew(begun, **again)

    assert isinstance(answer.verdict, AlreadyRenewed)
    assert answer.verdict.version == 2
    assert answer.verdict.expires_at == slot_lease(begun).expires_at
    assert photograph() == before


def test_a_wish_that_stands_twice_in_one_batch_has_one_effect(begun: Claimed) -> None:
    answers = leases.renew_many([Renewal(proof=begun.proof), Renewal(proof=begun.proof)])

    assert [type(one.verdict) for one in answers] == [Renewed, Renewed]
    assert slot_lease(begun).renewal_count == 1


def test_a_stale_wish_in_a_batch_harms_the_true_one_of_the_same_attempt_in_nothing(
    begun: Claimed,
) -> None:
    stale = replace(begun.proof, fence=Fence(epoch=1, counter=begun.proof.fence.counter - 1))

    answers = leases.renew_many([Renewal(proof=stale), Renewal(proof=begun.proof)])

    assert refusal(answers[0]) is RenewalRefusal.STALE_OWNER
    assert isinstance(answers[1].verdict, Renewed)


def test_nothing_to_renew_asks_nothing_of_the_database(
    django_assert_num_queries: Callable[[int], Any],
) -> None:
    with django_assert_num_queries(0):
        assert leases.renew_many([]) == []


def test_a_bulk_renewal_costs_as_many_statements_for_a_hundred_as_for_ten(
    admit: Admit, django_assert_num_queries: Callable[[int], Any]
) -> None:
    crew = register_worker("crew@here", slots=100)
    Account.objects.update(limit=1000)
    for _ in range(100):
        admit()
    queued = stages.queue_up() + stages.queue_up()
    claimed = [stages.claim(job, crew, slot=index) for index, job in enumerate(queued)]
    wishes = [Renewal(proof=one.proof) for one in claimed]

    # How long to wait, lock and read, the clock, write; the other two are the savepoint's.
    with django_assert_num_queries(6):
        ten = leases.renew_many(wishes[:10])
    with django_assert_num_queries(6):
        hundred = leases.renew_many(wishes)

    assert [type(one.verdict) for one in ten + hundred] == [Renewed] * 110
    assert [one.lease_id for one in hundred] == [one.proof.lease_id for one in wishes]


def policy_says(**values: Any) -> Callable[[Claimed], None]:
    def change(claimed: Claimed) -> None:
        ServingPolicy.objects.update(**values)

    return change


def lease_ends(claimed: Claimed) -> None:
    attempts.fail(claimed.proof, cause=EndReason.TASK_RETRY, error="")


def cancel_is_asked(claimed: Claimed) -> None:
    cancellation.ask(claimed.job_id, actor="user:test", reason="no need")


REFUSALS: list[tuple[str, Callable[[Claimed], None], timedelta, RenewalRefusal]] = [
    ("it was given back", lease_ends, NO_TIME, RenewalRefusal.LEASE_ENDED),
    ("it expires now", policy_says(), 30 * SECOND, RenewalRefusal.LEASE_EXPIRED),
    (
        "it expired a millisecond ago",
        policy_says(),
        timedelta(seconds=30, milliseconds=1),
        RenewalRefusal.LEASE_EXPIRED,
    ),
    ("a cancellation was asked for", cancel_is_asked, NO_TIME, RenewalRefusal.CANCEL_ASKED),
    (
        "the policy is closed",
        policy_says(is_open=False),
        NO_TIME,
        RenewalRefusal.POLICY_CLOSED,
    ),
    (
        "its total life is over",
        policy_says(lease_life_max=10 * SECOND),
        10 * SECOND,
        RenewalRefusal.LEASE_LIFE_SPENT,
    ),
    (
        "the reserved time is spent",
        policy_says(reserved_time_max=10 * SECOND),
        10 * SECOND,
        RenewalRefusal.RESERVED_TIME_SPENT,
    ),
    (
        "the renewals are spent",
        policy_says(renewals_max=0),
        NO_TIME,
        RenewalRefusal.RENEWAL_BUDGET_SPENT,
    ),
    (
        "the run limit is reached",
        policy_says(run_time_max=10 * SECOND),
        10 * SECOND,
        RenewalRefusal.RUN_LIMIT_SPENT,
    ),
    (
        "no progress was made",
        policy_says(stall_limit=10 * SECOND),
        10 * SECOND,
        RenewalRefusal.NO_PROGRESS,
    ),
]


@pytest.mark.parametrize(
    ("happens", "passes", "reason"), [pytest.param(*row[1:], id=row[0]) for row in REFUSALS]
)
def test_a_lease_is_refused_a_renewal_by_name_and_nothing_changes(
    begun: Claimed,
    happens: Callable[[Claimed], None],
    passes: timedelta,
    reason: RenewalRefusal,
) -> None:
    happens(begun)
    let_pass(passes)
    before = photograph()

    assert refusal(renew(begun)) is reason
    assert photograph() == before


@pytest.mark.parametrize(
    "reason", [RenewalRefusal.LEASE_ENDED, RenewalRefusal.STALE_OWNER], ids=str
)
def test_whoever_no_longer_owns_a_lease_is_told_of_no_time_left(
    begun: Claimed, reason: RenewalRefusal
) -> None:
    proof = begun.proof
    if reason is RenewalRefusal.LEASE_ENDED:
        lease_ends(begun)
    else:
        proof = replace(proof, fence=Fence(epoch=1, counter=1_000_000))

    (answer,) = leases.renew_many([Renewal(proof=proof)])

    assert (refusal(answer), answer.left) == (reason, NO_TIME)


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        pytest.param({"lease_id": UUID(int=5)}, RenewalRefusal.UNKNOWN_LEASE, id="lease"),
        pytest.param({"attempt_id": UUID(int=5)}, RenewalRefusal.WRONG_ATTEMPT, id="attempt"),
        pytest.param({"fence": Fence(epoch=2, counter=1)}, RenewalRefusal.STALE_OWNER, id="epoch"),
    ],
)
def test_a_false_proof_renews_nothing(
    begun: Claimed, proof: dict[str, Any], reason: RenewalRefusal
) -> None:
    before = photograph()

    (answer,) = leases.renew_many([Renewal(proof=replace(begun.proof, **proof))])

    assert refusal(answer) is reason
    assert answer.remaining is None
    assert not answer.cancel_asked
    assert photograph() == before


def test_a_version_that_is_two_behind_is_refused(begun: Claimed) -> None:
    renew(begun)
    renew(begun)
    assert refusal(renew(begun, expected_version=1)) is RenewalRefusal.VERSION_CHANGED
    assert isinstance(renew(begun, expected_version=3).verdict, Renewed)


def test_an_owner_that_stops_its_task_may_follow_the_cancellation_until_its_stop_deadline(
    begun: Claimed, policy: ServingPolicy
) -> None:
    cancel_is_asked(begun)
    let_pass(10 * SECOND)

    answer = renew(begun, cancel_follow=True)

    assert answer.cancel_asked
    asked_at = Job.objects.get().cancel_asked_at
    assert asked_at is not None
    assert slot_lease(begun).expires_at == asked_at + policy.stop_grace + policy.lease_ttl


def test_one_refused_lease_harms_no_other_of_the_batch(admit: Admit, worker: Registered) -> None:
    admit(), admit()
    first, second = (
        stages.run(job, worker, slot=index) for index, job in enumerate(stages.queue_up())
    )
    let_pass(31 * SECOND, job=Job.objects.get(pk=first.job_id))

    answers = leases.renew_many([Renewal(proof=first.proof), Renewal(proof=second.proof)])

    assert stages.count_verdicts(answers) == {"lease_expired": 1, "renewed": 1}


def test_the_control_plane_renews_what_is_due_and_only_that(
    permit: PermitPool, queued_job: Job, worker: Registered
) -> None:
    assert leases.renew_queued(limit=10) == {}
    let_pass(10 * SECOND)
    workers.seen(worker.worker_id)

    assert leases.renew_queued(limit=10) == {"renewed": 1}
    assert leases.renew_queued(limit=10) == {}

    lease = Lease.objects.get()
    assert lease.renewal_count == 1
    assert lease.expires_at - lease.renewed_at == 30 * SECOND  # type: ignore[operator]


def worker_falls_silent() -> None:
    let_pass(15 * SECOND)
    assert leases.renew_queued(limit=10) == {"renewed": 1}
    let_pass(16 * SECOND)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        pytest.param(worker_falls_silent, RenewalRefusal.NO_LIVE_WORKER, id="no worker"),
        pytest.param(
            lambda: ServingPolicy.objects.update(is_open=False),
            RenewalRefusal.POLICY_CLOSED,
            id="policy closed",
        ),
    ],
)
def test_the_permit_of_a_queued_job_is_refused_by_name(
    permit: PermitPool,
    queued_job: Job,
    worker: Registered,
    happens: Callable[[], Any],
    reason: RenewalRefusal,
) -> None:
    let_pass(10 * SECOND)
    workers.seen(worker.worker_id)
    happens()
    before = photograph()

    assert leases.renew_queued(limit=10) == {str(reason): 1}
    assert photograph() == before


def test_the_permits_of_a_running_job_are_not_the_control_planes_to_renew(
    permit: PermitPool, begun: Claimed
) -> None:
    let_pass(10 * SECOND)
    assert leases.renew_queued(limit=10) == {}
