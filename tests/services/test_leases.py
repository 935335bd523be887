from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from leaseq.models import (
    Account,
    Attempt,
    Hold,
    Job,
    JobEvent,
    Lease,
    LedgerEntry,
    PermitPool,
    ProviderRequest,
    ServingPolicy,
)
from leaseq.rules.ownership import Fence
from leaseq.rules.renewal import AlreadyRenewed, Refused, Renewed
from leaseq.services import attempts, cancellation, dispatch, leases, workers
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Target
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    LeaseStatus,
    PoolKind,
    RenewalRefusal,
    RequestState,
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
TARGET = Target(provider="private", endpoint="http://model", model="m", ends_with_connection=True)


@pytest.fixture
def permit(db: None) -> PermitPool:
    """A pool in which every job on the queue `gpu` needs a permit."""
    return PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=100)


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
    before = Lease.objects.values().get(pk=begun.proof.lease_id)
    others = photograph()

    answer = renew(begun, key="k1")

    after = Lease.objects.values().get(pk=begun.proof.lease_id)
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

    # Lock and read, the clock, write; the other two are the savepoint's.
    with django_assert_num_queries(5):
        ten = leases.renew_many(wishes[:10])
    with django_assert_num_queries(5):
        hundred = leases.renew_many(wishes)

    assert leases.count_verdicts(ten + hundred) == {"renewed": 110}
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

    assert leases.count_verdicts(answers) == {"lease_expired": 1, "renewed": 1}


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


def worker_of_all() -> UUID:
    found: UUID = workers.WorkerNode.objects.values_list("pk", flat=True).get()
    return found


def test_the_permits_of_a_running_job_are_not_the_control_planes_to_renew(
    permit: PermitPool, begun: Claimed
) -> None:
    let_pass(10 * SECOND)
    assert leases.renew_queued(limit=10) == {}


def test_expiry_gives_slot_and_permit_back_and_opens_the_next_attempt_with_its_old_age(
    permit: PermitPool, begun: Claimed
) -> None:
    let_pass(30 * SECOND)
    before = Job.objects.get()

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    first, second = job.attempts.order_by("number")
    assert (first.state, first.reason) == (AttemptState.LOST, EndReason.LEASE_EXPIRED)
    assert (second.number, second.state) == (2, AttemptState.OPEN)
    assert (job.state, job.current_attempt_number) == (JobState.ADMITTED, 2)
    assert job.submitted_at == before.submitted_at
    assert job.not_before > job.changed_at
    assert job.waiting_since == job.not_before
    assert job.attempts_counted == 1
    ended = Lease.objects.exclude(status=LeaseStatus.TRANSFERRED)
    assert {one.status for one in ended} == {LeaseStatus.EXPIRED}
    assert all(one.ended_at == one.expires_at for one in ended)
    assert job.reserved_time_used >= 30 * SECOND


def test_expiry_run_ten_times_tells_of_one_loss_and_opens_one_attempt(begun: Claimed) -> None:
    """Case D6."""
    let_pass(30 * SECOND)

    verdicts = [leases.expire(begun.job_id, actor="control:expire") for _ in range(10)]

    assert [one is None for one in verdicts] == [False] + [True] * 9
    assert JobEvent.objects.filter(kind="readmitted").count() == 1
    assert Attempt.objects.count() == 2


def test_a_live_lease_is_not_expired(begun: Claimed) -> None:
    let_pass(29 * SECOND)
    before = photograph()
    assert leases.expire(begun.job_id, actor="control:expire") is None
    assert photograph() == before


def test_the_bound_that_ended_a_renewal_is_named_as_the_cause(begun: Claimed) -> None:
    ServingPolicy.objects.update(run_time_max=20 * SECOND)
    renew(begun)
    let_pass(20 * SECOND)

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_RUN_TIME,
        True,
    )


def test_a_lost_reservation_counts_against_queue_age_and_not_against_attempts(
    permit: PermitPool, queued_job: Job
) -> None:
    let_pass(30 * SECOND)

    leases.expire(queued_job.pk, actor="control:expire")

    job = Job.objects.get()
    first = job.attempts.get(number=1)
    assert (first.state, first.reason) == (
        AttemptState.RESERVATION_EXPIRED,
        EndReason.RESERVATION_EXPIRED,
    )
    assert job.attempts_counted == 0
    assert job.queue_time_used >= 30 * SECOND
    with pytest.raises(Exception, match="not_the_current_attempt"):
        attempts.claim(first.pk, worker_id=worker_of_all(), slot_id=1)


@pytest.fixture
def sent(claimed: Claimed) -> dispatch.Intent:
    """A request that may have been sent."""
    return dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")


def test_a_possibly_sent_attempt_waits_for_a_verdict_and_nothing_new_opens(
    sent: dispatch.Intent,
) -> None:
    let_pass(30 * SECOND)
    job = Job.objects.get()

    leases.expire(job.pk, actor="control:expire")

    attempt = Attempt.objects.get()
    job.refresh_from_db()
    assert (attempt.state, job.state) == (AttemptState.OUTCOME_UNKNOWN, JobState.DISPATCHING)
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 0
    assert ProviderRequest.objects.get().state == RequestState.UNKNOWN
    before = photograph()
    assert leases.expire(job.pk, actor="control:expire") is None
    assert leases.resolve_unknown(job.pk, actor="control:expire") is None
    assert photograph() == before


def test_the_death_of_its_holder_is_the_verdict_on_a_request_that_ends_with_its_connection(
    sent: dispatch.Intent, worker: Registered
) -> None:
    renew_once = leases.renew_many([Renewal(proof=sent.proof)])
    assert leases.count_verdicts(renew_once) == {"renewed": 1}
    let_pass(30 * SECOND)
    job = Job.objects.get()
    leases.expire(job.pk, actor="control:expire")
    workers.declare_dead(worker.worker_id)

    leases.resolve_unknown(job.pk, actor="control:expire")

    job.refresh_from_db()
    first = job.attempts.get(number=1)
    assert (first.state, first.reason) == (AttemptState.LOST, EndReason.HOLDER_STOPPED)
    assert job.state == JobState.ADMITTED
    assert ProviderRequest.objects.get().state == RequestState.ABORTED
    # What was renewed while its end was not known counts against the job's budget (SPEC B7).
    assert job.renewals_used == 1
    assert first.possibly_sent


def test_when_monitoring_ends_the_job_ends_and_never_by_a_new_attempt(
    sent: dispatch.Intent, policy: ServingPolicy
) -> None:
    let_pass(30 * SECOND)
    job = Job.objects.get()
    leases.expire(job.pk, actor="control:expire")
    let_pass(policy.uncertain_max)

    leases.resolve_unknown(job.pk, actor="control:expire")

    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.FAILED, EndReason.MONITORING_ENDED)
    assert job.attempts.count() == 1


def test_a_silent_owner_of_a_cancelled_job_leads_to_cancelled(begun: Claimed) -> None:
    cancel_is_asked(begun)
    let_pass(30 * SECOND)

    leases.expire(begun.job_id, actor="control:expire")

    job = Job.objects.get()
    assert (job.state, job.attempts.get().state) == (JobState.CANCELLED, AttemptState.CANCELLED)
    assert job.attempts.count() == 1


def test_a_job_that_kills_its_worker_ends_after_as_many_starts_as_its_policy_allows(
    job: Job, worker: Registered, policy: ServingPolicy
) -> None:
    """Case B5: the attempt counts when capacity is granted, whatever kills it."""
    starts = 0
    for _ in range(policy.attempts_max + 2):
        for queued in stages.queue_up():
            stages.run(queued, worker)
            starts += 1
        let_pass(30 * SECOND)
        workers.seen(worker.worker_id)
        leases.expire(job.pk, actor="control:expire")
        let_pass(policy.retry_cap)

    job.refresh_from_db()
    assert starts == job.attempts_counted == 3
    assert (job.state, job.reason, job.dead_letter) == (
        JobState.FAILED,
        EndReason.MAX_ATTEMPTS,
        True,
    )
    # The job says which bound it hit, each attempt what became of it.
    assert set(job.attempts.values_list("state", "reason")) == {
        (AttemptState.LOST, EndReason.LEASE_EXPIRED)
    }
    assert Lease.objects.filter(status=LeaseStatus.ACTIVE).count() == 0


def test_a_restarted_worker_of_the_same_name_keeps_no_orphan_alive(
    begun: Claimed, worker: Registered
) -> None:
    """Case B4: the new incarnation beats, and the old one's lease still ends on time."""
    again = register_worker("gpu1@here", slots=2, pid=4712)
    assert again.slot_ids == worker.slot_ids
    assert again.worker_id != worker.worker_id
    for _ in range(3):
        let_pass(10 * SECOND)
        workers.seen(again.worker_id)
    before = photograph()

    assert refusal(renew(begun)) is RenewalRefusal.LEASE_EXPIRED
    assert photograph() == before
    leases.expire(begun.job_id, actor="control:expire")
    let_pass(5 * SECOND)
    workers.seen(again.worker_id)
    (queued,) = stages.queue_up()
    assert stages.run(queued, again).attempt_number == 2


def test_neither_renewal_nor_expiry_moves_money(begun: Claimed) -> None:
    def amounts() -> list[Any]:
        held = Hold.objects.values_list("state", "amount", "held", "settled", "released")
        return [*held, LedgerEntry.objects.count(), Account.objects.get().held]

    before = amounts()
    renew(begun)
    let_pass(30 * SECOND)
    leases.expire(begun.job_id, actor="control:expire")
    assert amounts() == before
