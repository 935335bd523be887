from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from leaseq.models import (
    Account,
    Finding,
    Hold,
    Job,
    JobEvent,
    LedgerEntry,
    Price,
    ServingPolicy,
    UsageRecord,
)
from leaseq.queries import money as money_queries
from leaseq.services import attempts, cancellation, dispatch, holds, leases, workers
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Target
from leaseq.services.workers import Registered
from leaseq.vocabulary import Book, EndReason, HoldState, JobState, RequestState
from tests.conftest import LONG_AGO
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
Asserts = Callable[[int], Any]
SECOND = timedelta(seconds=1)
TARGET = Target(provider="private", endpoint="http://model", model="", ends_with_connection=False)


@pytest.fixture
def running(claimed: Claimed, prices: Any) -> dispatch.Intent:
    """A request that runs at a provider."""
    intent = dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")
    dispatch.record_accepted(intent, provider_request_id=None)
    dispatch.record_started(intent)
    return intent


def finish(running: dispatch.Intent, **quantities: str) -> Job:
    dispatch.record_ended(
        running,
        state=RequestState.SUCCEEDED,
        quantities={unit: Decimal(one) for unit, one in quantities.items()},
    )
    attempts.complete(running.proof, result=1)
    return Job.objects.get()


def books() -> dict[Book, Decimal]:
    """The books of the account as the ledger tells them; they agree with the account's own."""
    account = Account.objects.get()
    told = money_queries.rebuilt_balances(account)
    assert told[Book.HELD] == account.held
    assert told[Book.SETTLED] == account.settled
    assert sum(told.values()) == 0
    return told


def test_usage_is_charged_to_the_last_place_and_the_rest_released(
    running: dispatch.Intent, django_assert_num_queries: Asserts
) -> None:
    job = finish(running, prompt_token="1001", completion_token="2")

    with django_assert_num_queries(20):
        assert holds.settle(job.pk) == "settled"

    hold = Hold.objects.get()
    assert (hold.state, hold.reason) == (HoldState.SETTLED, EndReason.USAGE_SETTLED)
    assert (hold.settled, hold.released, hold.held) == (
        Decimal("0.001005"),
        Decimal("0.998995"),
        0,
    )
    assert books()[Book.SETTLED] == Decimal("0.001005")
    entry = LedgerEntry.objects.get(kind="settle")
    assert set(UsageRecord.objects.values_list("settled_by", flat=True)) == {entry.pk}
    job.refresh_from_db()
    assert (job.settle_at, job.settled_at) == (None, hold.closed_at)
    assert job.events.latest("version").kind == "hold_settled"


def test_a_hold_is_settled_once(running: dispatch.Intent) -> None:
    job = finish(running, prompt_token="1")
    holds.settle(job.pk)
    before = photograph()
    assert holds.settle(job.pk) == "nothing_due"
    assert photograph() == before


def test_a_job_that_goes_on_settles_nothing(begun: Claimed) -> None:
    before = photograph()
    assert holds.settle(begun.job_id) == "nothing_due"
    assert photograph() == before


def test_what_was_never_sent_is_released_whole(job: Job) -> None:
    cancellation.ask(job.pk, actor="user:test", reason="no longer needed")

    assert holds.settle(job.pk) == "released"

    hold = Hold.objects.get()
    assert (hold.state, hold.reason, hold.released) == (
        HoldState.RELEASED,
        EndReason.NEVER_SENT,
        Decimal(1),
    )
    assert books() == {Book.AVAILABLE: 0, Book.HELD: 0, Book.SETTLED: 0}


def test_what_was_sent_and_used_nothing_is_released(running: dispatch.Intent) -> None:
    job = finish(running)
    assert holds.settle(job.pk) == "released"
    assert Hold.objects.get().reason == EndReason.NO_USAGE


def test_usage_above_the_hold_is_settled_up_to_it_and_the_overage_is_told(
    running: dispatch.Intent,
) -> None:
    job = finish(running, prompt_token="1500000")

    assert holds.settle(job.pk) == "settled"

    assert books()[Book.SETTLED] == Decimal(1)
    finding = Finding.objects.get()
    assert (finding.kind, finding.evidence["overage"]) == (holds.ABOVE_HOLD, "0.500000000")


def test_unpriced_usage_is_never_settled_at_zero(running: dispatch.Intent) -> None:
    """SPEC M3: the hold stays, one finding and one event say so, however often one looks."""
    job = finish(running, joule="5")

    for _ in range(3):
        assert holds.settle(job.pk) == "unpriced_usage"
        let_pass(SECOND)

    assert Hold.objects.get().state == HoldState.HELD
    assert Finding.objects.get().evidence["reason"] == "unpriced_usage"
    assert JobEvent.objects.filter(kind="hold_kept").count() == 1
    job.refresh_from_db()
    assert job.settle_at is not None
    assert job.settle_at > job.changed_at
    last = JobEvent.objects.get(job=job, version=job.version)
    assert job.changed_at == last.at, "a look without news moves no time"


def test_a_price_that_comes_later_settles_what_was_kept(running: dispatch.Intent) -> None:
    job = finish(running, joule="5")
    holds.settle(job.pk)
    Price.objects.create(
        provider="private", unit="joule", currency="EUR", amount="0.01", valid_from=LONG_AGO
    )

    assert holds.settle(job.pk) == "settled"
    assert UsageRecord.objects.get(unit="joule").cost == Decimal("0.05")
    assert books()[Book.SETTLED] == Decimal("0.05")
    assert Finding.objects.get().closed_at is not None


def test_a_price_from_after_the_usage_does_not_settle_it(running: dispatch.Intent) -> None:
    job = finish(running, joule="5")
    holds.settle(job.pk)
    line = UsageRecord.objects.get(unit="joule")
    Price.objects.create(
        provider="private",
        unit="joule",
        currency="EUR",
        amount="0.01",
        valid_from=line.recorded_at + SECOND,
    )
    assert holds.settle(job.pk) == "unpriced_usage"
    assert UsageRecord.objects.get(unit="joule").cost is None


def test_an_unknown_outcome_keeps_the_hold_until_there_is_a_verdict(
    running: dispatch.Intent, worker: Registered, policy: ServingPolicy
) -> None:
    """Case P5: the holder is gone, and nobody knows what the provider did."""
    let_pass(30 * SECOND)
    job = Job.objects.get()
    leases.expire(job.pk, actor="control:expire")
    assert holds.settle(job.pk) == "nothing_due"
    assert (Hold.objects.get().state, Account.objects.get().held) == (HoldState.HELD, Decimal(1))

    let_pass(policy.uncertain_max)
    workers.declare_dead(worker.worker_id)
    leases.resolve_unknown(job.pk, actor="control:expire")

    # The policy ended monitoring, which is no evidence: a person decides on the money.
    assert holds.settle(job.pk) == "no_evidence"
    assert (Hold.objects.get().state, Account.objects.get().held) == (HoldState.HELD, Decimal(1))
    assert Finding.objects.get(kind=holds.HOLD_KEPT).evidence["reason"] == "no_evidence"


def test_a_request_that_was_left_open_keeps_the_hold_of_its_ended_job(
    running: dispatch.Intent,
) -> None:
    attempts.complete(running.proof, result=1)
    job = Job.objects.get()

    assert holds.settle(job.pk) == "outcome_unknown"
    assert Hold.objects.get().state == HoldState.HELD


@pytest.mark.parametrize(
    ("short_of", "said", "state"),
    [
        pytest.param(SECOND, "nothing_due", JobState.ADMITTED, id="just before"),
        pytest.param(timedelta(0), "job_expired", JobState.EXPIRED, id="at its time"),
    ],
)
def test_a_waiting_job_ends_when_its_hold_does(
    admit: Callable[..., Job],
    policy: ServingPolicy,
    short_of: timedelta,
    said: str,
    state: JobState,
) -> None:
    """Case P6, SPEC F2: never sent; the job expires, and the settle pass frees the money."""
    ServingPolicy.objects.update(hold_ttl=timedelta(hours=1))
    job = admit()
    let_pass(timedelta(hours=1) - short_of)

    assert holds.meet_expiry(job.pk) == said

    job.refresh_from_db()
    assert job.state == state
    assert Hold.objects.get().state == HoldState.HELD
    if state is JobState.EXPIRED:
        assert job.reason == EndReason.HOLD_EXPIRED
        assert holds.settle(job.pk) == "expired"
        assert Hold.objects.get().state == HoldState.EXPIRED
        assert books()[Book.AVAILABLE] == 0
        assert holds.meet_expiry(job.pk) == "nothing_due"


def test_renewals_do_not_extend_a_hold_and_running_work_is_not_stopped_by_it(
    admit: Callable[..., Job], worker: Registered, policy: ServingPolicy
) -> None:
    """Case P6: what runs when its hold runs out may be owed, so the money stays."""
    ServingPolicy.objects.update(hold_ttl=60 * SECOND)
    job = admit()
    claimed = stages.run(stages.queue_up()[0], worker)
    span = Hold.objects.get().expires_at - Hold.objects.get().created_at
    for _ in range(4):
        let_pass(20 * SECOND)
        leases.renew_many([leases.Renewal(proof=claimed.proof)])
    assert Hold.objects.get().expires_at - Hold.objects.get().created_at == span

    assert [holds.meet_expiry(job.pk) for _ in range(2)] == ["kept", "kept"]

    job.refresh_from_db()
    assert (job.state, Hold.objects.get().state) == (JobState.RUNNING, HoldState.HELD)
    assert Finding.objects.get().kind == holds.PAST_ITS_TIME
    attempts.complete(claimed.proof, result=1)
    holds.settle(job.pk)
    assert Finding.objects.get().closed_at is not None


def test_free_work_closes_its_hold_without_an_entry(admit: Callable[..., Job]) -> None:
    job = admit(cost_ceiling=0)
    cancellation.ask(job.pk, actor="user:test", reason="no longer needed")
    assert holds.settle(job.pk) == "released"
    assert LedgerEntry.objects.count() == 0


def test_nine_places_settle_without_dust(
    admit: Callable[..., Job], worker: Registered, account: Account
) -> None:
    """Case Q1: three settlements of a third of a unit of the last place each round by itself."""
    Price.objects.create(
        provider="private", unit="x", currency="EUR", amount="0.000000001", valid_from=LONG_AGO
    )
    for quantity, cost in [("0.5", "0"), ("1.5", "0.000000002"), ("0.6", "0.000000001")]:
        job = admit(cost_ceiling="0.000000003")
        claimed = stages.claim(stages.queue_up()[0], worker)
        intent = dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")
        dispatch.record_accepted(intent, provider_request_id=None)
        dispatch.record_started(intent)
        dispatch.record_ended(
            intent, state=RequestState.SUCCEEDED, quantities={"x": Decimal(quantity)}
        )
        attempts.complete(claimed.proof, result=1)
        assert holds.settle(job.pk) == "settled"
        assert Hold.objects.get(job=job).settled == Decimal(cost)
    assert books()[Book.SETTLED] == Decimal("0.000000003")
