import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from leaseq.errors import AdmissionRefused, Misconfigured
from leaseq.models import Account, Hold, Job, JobEvent, LedgerEntry, PermitPool, ServingPolicy
from leaseq.services import admission, ports, scheduling
from leaseq.services.admission import AdmissionRequest
from leaseq.vocabulary import (
    AdmissionRefusal,
    Book,
    EntryKind,
    HoldState,
    JobState,
    NoPermit,
    PoolKind,
)
from tests.conftest import RecordingPorts
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db

REQUEST = AdmissionRequest(task="tests.nothing", queue="gpu", account="acme", policy="batch")
Capture = Any


@pytest.fixture(autouse=True)
def known_names(account: Account, policy: ServingPolicy) -> None:
    """The account and the policy that the request names."""


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


def test_job_attempt_hold_ledger_entry_and_event_stand_together() -> None:
    admitted = admission.admit(
        replace(REQUEST, kwargs={"n": 1}, cost_ceiling="0.75", priority=3), actor="user:test"
    )

    job = Job.objects.get()
    assert (job.pk, job.state, job.priority, job.version) == (
        admitted.job_id,
        JobState.ADMITTED,
        3,
        1,
    )
    assert job.payload == {"args": [], "kwargs": {"n": 1}}
    assert job.submitted_at == job.not_before == job.waiting_since
    assert job.queue_deadline_at == job.submitted_at + job.policy.queue_age_max
    assert job.attempts.get().pk == admitted.attempt_id
    hold = Hold.objects.get()
    assert (hold.state, hold.amount, hold.held) == (
        HoldState.HELD,
        Decimal("0.75"),
        Decimal("0.75"),
    )
    assert hold.expires_at == job.submitted_at + job.policy.hold_ttl
    entry = LedgerEntry.objects.get()
    assert (entry.kind, entry.source, entry.target, entry.amount, entry.hold_id) == (
        EntryKind.HOLD,
        Book.AVAILABLE,
        Book.HELD,
        Decimal("0.75"),
        hold.pk,
    )
    event = JobEvent.objects.get()
    assert (event.kind, event.version, event.actor) == ("admitted", 1, "user:test")
    assert Account.objects.get().held == Decimal("0.75")


def test_admission_is_one_reading_and_one_writing_statement(
    django_assert_num_queries: Callable[[int], Any],
) -> None:
    # The other two are the savepoint's: in a transaction of its own they are BEGIN and COMMIT.
    with django_assert_num_queries(4):
        admission.admit(REQUEST, actor="user:test")


def test_a_known_key_costs_one_statement(
    django_assert_num_queries: Callable[[int], Any],
) -> None:
    keyed = replace(REQUEST, idempotency_key="k")
    admission.admit(keyed, actor="user:test")
    with django_assert_num_queries(1):
        admission.admit(keyed, actor="user:test")


def test_the_same_key_with_the_same_payload_returns_the_first_job() -> None:
    keyed = replace(REQUEST, idempotency_key="order-1", args=[1])
    first = admission.admit(keyed, actor="user:test")
    before = photograph()

    again = admission.admit(keyed, actor="user:test")

    assert (again.job_id, again.created) == (first.job_id, False)
    assert photograph() == before


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"args": [2]}, id="another payload"),
        pytest.param({"task": "tests.other"}, id="another task"),
    ],
)
def test_the_same_key_for_another_request_is_refused(other: dict[str, Any]) -> None:
    keyed = replace(REQUEST, idempotency_key="order-1", args=[1])
    first = admission.admit(keyed, actor="user:test")
    before = photograph()

    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(replace(keyed, **other), actor="user:test")

    assert refused.value.reason is AdmissionRefusal.KEY_REUSED
    assert refused.value.ids["job_id"] == first.job_id
    assert photograph() == before


def test_a_key_belongs_to_its_account() -> None:
    Account.objects.create(name="other", currency="EUR", limit=Decimal(5))
    keyed = replace(REQUEST, idempotency_key="order-1")
    first = admission.admit(keyed, actor="user:test")

    second = admission.admit(replace(keyed, account="other"), actor="user:test")

    assert second.created
    assert second.job_id != first.job_id


def test_a_known_key_is_answered_after_its_account_has_closed() -> None:
    keyed = replace(REQUEST, idempotency_key="order-1")
    first = admission.admit(keyed, actor="user:test")
    Account.objects.update(is_open=False)

    assert admission.admit(keyed, actor="user:test").job_id == first.job_id


BAD = AdmissionRefusal.BAD_ARGUMENT
NOT_JSON = AdmissionRefusal.PAYLOAD_NOT_JSON
MONEY = AdmissionRefusal.BAD_MONEY
LONG_AWAY = datetime(9999, 12, 31, tzinfo=UTC)
REFUSED = [
    ("unknown account", {"account": "nobody"}, AdmissionRefusal.UNKNOWN_ACCOUNT),
    ("unknown policy", {"policy": "none"}, AdmissionRefusal.UNKNOWN_POLICY),
    ("NaN", {"args": [math.nan]}, NOT_JSON),
    ("infinity", {"kwargs": {"x": -math.inf}}, NOT_JSON),
    ("NUL in text", {"args": ["a\0b"]}, NOT_JSON),
    ("NUL in a key", {"kwargs": {"a\0b": 1}}, NOT_JSON),
    ("half of a surrogate pair", {"args": ["\ud800"]}, NOT_JSON),
    ("a key that is no text", {"args": [{1: 2}]}, NOT_JSON),
    ("bytes", {"args": [b"x"]}, NOT_JSON),
    ("a set", {"args": [{1}]}, NOT_JSON),
    ("a decimal", {"args": [Decimal(1)]}, NOT_JSON),
    ("an object", {"args": [object()]}, NOT_JSON),
    ("an endless number", {"args": [10**5000]}, NOT_JSON),
    ("too deep", {"args": deep(40)}, AdmissionRefusal.PAYLOAD_TOO_DEEP),
    ("too large", {"args": ["x" * 70_000]}, AdmissionRefusal.PAYLOAD_TOO_LARGE),
    ("args that are text", {"args": "abc"}, BAD),
    ("args that are a number", {"args": 5}, BAD),
    ("kwargs that are a list", {"kwargs": [1]}, BAD),
    ("negative money", {"cost_ceiling": Decimal("-0.01")}, MONEY),
    ("ten places", {"cost_ceiling": "0.0000000001"}, MONEY),
    ("a float as money", {"cost_ceiling": 0.1}, MONEY),
    ("a bool as money", {"cost_ceiling": True}, MONEY),
    ("money that is no number", {"cost_ceiling": "much"}, MONEY),
    ("NaN as money", {"cost_ceiling": Decimal("NaN")}, MONEY),
    ("endless money", {"cost_ceiling": 10**5000}, MONEY),
    ("a naive instant", {"not_before": datetime(2026, 1, 1)}, BAD),  # noqa: DTZ001
    ("an instant as text", {"not_before": "2026-01-01"}, BAD),
    ("an instant out of reach", {"not_before": LONG_AWAY}, BAD),
    ("priority too high", {"priority": 101}, BAD),
    ("priority too low", {"priority": -101}, BAD),
    ("an endless priority", {"priority": 10**5000}, BAD),
    ("priority as a bool", {"priority": True}, BAD),
    ("priority as a float", {"priority": 1.0}, BAD),
    *((f"empty {name}", {name: ""}, BAD) for name in ("task", "queue", "account", "policy")),
    ("empty key", {"idempotency_key": ""}, BAD),
    ("no task", {"task": None}, BAD),
    ("task of 201 characters", {"task": "t" * 201}, BAD),
    ("queue of 101 characters", {"queue": "q" * 101}, BAD),
    ("provider of 101 characters", {"provider": "p" * 101}, BAD),
    ("key of 201 characters", {"idempotency_key": "k" * 201}, BAD),
    ("NUL in a name", {"queue": "a\0b"}, BAD),
    ("half of a surrogate pair in a name", {"account": "\udfff"}, BAD),
    ("more than the account has", {"cost_ceiling": 101}, AdmissionRefusal.INSUFFICIENT_FUNDS),
]


@pytest.mark.parametrize(
    ("asked", "reason"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
def test_what_cannot_be_admitted_is_refused_by_name_and_nothing_is_stored(
    asked: dict[str, Any], reason: AdmissionRefusal
) -> None:
    before = photograph()

    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(replace(REQUEST, **asked), actor="user:test")

    assert refused.value.reason is reason
    assert photograph() == before


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"task": "t" * 200}, id="task of 200 characters"),
        pytest.param({"queue": "q" * 100}, id="queue of 100 characters"),
        pytest.param({"priority": 100}, id="highest priority"),
        pytest.param({"priority": -100}, id="lowest priority"),
        pytest.param({"cost_ceiling": "0.000000001"}, id="nine places"),
        pytest.param({"cost_ceiling": 100}, id="all that the account has"),
        pytest.param({"args": deep(28)}, id="deep enough"),
        pytest.param({"args": ["\N{GRINNING FACE}"]}, id="text beyond 16 bits"),
    ],
)
def test_what_lies_just_within_a_bound_is_admitted(asked: dict[str, Any]) -> None:
    assert admission.admit(replace(REQUEST, **asked), actor="user:test").created


@pytest.mark.parametrize("actor", ["", "a" * 201, "a\0b"])
def test_an_actor_is_named_or_nothing_is_admitted(actor: str) -> None:
    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(REQUEST, actor=actor)
    assert refused.value.reason is BAD
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        pytest.param(Account, AdmissionRefusal.ACCOUNT_CLOSED, id="account"),
        pytest.param(ServingPolicy, AdmissionRefusal.POLICY_CLOSED, id="policy"),
    ],
)
def test_a_closed_account_or_policy_admits_nothing(model: Any, reason: AdmissionRefusal) -> None:
    model.objects.update(is_open=False)
    before = photograph()

    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(REQUEST, actor="user:test")

    assert refused.value.reason is reason
    assert photograph() == before


def test_a_shortfall_is_named_to_the_last_place() -> None:
    admission.admit(replace(REQUEST, cost_ceiling="99.5"), actor="user:test")

    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(replace(REQUEST, cost_ceiling="0.500000001"), actor="user:test")

    assert refused.value.ids["shortfall"] == Decimal("0.000000001")
    assert Account.objects.get().held == Decimal("99.5")
    assert Job.objects.count() == 1


def test_unpriced_work_without_a_ceiling_is_refused_and_free_work_is_not() -> None:
    ServingPolicy.objects.update(cost_ceiling=None)
    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(REQUEST, actor="user:test")
    assert refused.value.reason is AdmissionRefusal.NO_COST_CEILING

    admission.admit(replace(REQUEST, cost_ceiling=0), actor="user:test")

    assert Hold.objects.get().amount == 0
    assert LedgerEntry.objects.count() == 0


def test_a_policy_may_refuse_rather_than_let_jobs_wait_for_a_permit() -> None:
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=1)
    ServingPolicy.objects.update(when_no_permit=NoPermit.REFUSE)
    admission.admit(REQUEST, actor="user:test")
    scheduling.reserve("gpu", limit=1)
    before = photograph()

    with pytest.raises(AdmissionRefused, match="queue:gpu") as refused:
        admission.admit(REQUEST, actor="user:test")

    assert refused.value.reason is AdmissionRefusal.NO_PERMIT_FREE
    assert photograph() == before
    ServingPolicy.objects.update(when_no_permit=NoPermit.WAIT)
    assert admission.admit(REQUEST, actor="user:test").created


def test_a_job_for_later_counts_its_waiting_from_then_on() -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)

    admission.admit(replace(REQUEST, not_before=later), actor="user:test")

    job = Job.objects.get()
    assert job.submitted_at < later
    assert job.waiting_since == later
    assert job.queue_deadline_at == later + timedelta(hours=24)
    assert Hold.objects.get().expires_at == later + timedelta(days=7)


def test_the_scheduler_is_rung_after_the_commit(
    recording_ports: RecordingPorts, django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        admission.admit(REQUEST, actor="user:test")
        assert recording_ports.rings == []
    assert recording_ports.rings == ["schedule"]
    assert recording_ports.later == []


def test_without_a_celery_app_nothing_is_admitted_and_the_mend_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_installed", [])
    before = photograph()

    with pytest.raises(Misconfigured, match=r"wiring\.install"):
        admission.admit(REQUEST, actor="user:test")

    assert photograph() == before


def test_balances_hold_no_dust_after_many_clean_amounts() -> None:
    """Case Q1: 17.75 less 16.03 is 1.72, to be held whole and not a cent more."""
    Account.objects.update(limit=Decimal("17.75"))
    admission.admit(replace(REQUEST, cost_ceiling="16.03"), actor="user:test")

    with pytest.raises(AdmissionRefused) as refused:
        admission.admit(replace(REQUEST, cost_ceiling="1.73"), actor="user:test")
    assert refused.value.ids["shortfall"] == Decimal("0.01")
    admission.admit(replace(REQUEST, cost_ceiling="1.72"), actor="user:test")

    account = Account.objects.get()
    assert account.limit - account.held == 0


def test_nine_places_are_kept_to_the_last() -> None:
    amount = Decimal("12.345678912")

    admission.admit(replace(REQUEST, cost_ceiling=amount), actor="user:test")

    assert Hold.objects.get().amount == LedgerEntry.objects.get().amount == amount
    assert Account.objects.get().held == amount


def test_ids_are_known_before_any_message_is(recording_ports: RecordingPorts) -> None:
    """Case H3: the ids of job and attempt are ours, and stand at once."""
    admitted = admission.admit(REQUEST, actor="user:test")

    assert isinstance(admitted.job_id, UUID)
    assert isinstance(admitted.attempt_id, UUID)
    assert recording_ports.doorbells == []
