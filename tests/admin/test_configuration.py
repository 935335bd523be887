"""Accounts, policies, pools and prices are set up here, with every check of the tables."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from leaseq.models import Account, Job, PermitPool, Price, ServingPolicy

pytestmark = pytest.mark.django_db

POLICY = {
    "name": "night",
    "is_open": "on",
    "lease_ttl": "30",
    "renew_every": "10",
    "queue_age_max": "1 00:00:00",
    "lease_life_max": "06:00:00",
    "reserved_time_max": "12:00:00",
    "renewals_max": "10000",
    "attempts_max": "3",
    "run_time_max": "01:00:00",
    "provider_wait_max": "00:10:00",
    "stall_limit": "",
    "uncertain_max": "1 00:00:00",
    "retry_base": "1",
    "retry_cap": "300",
    "on_bound": "dead_letter",
    "when_no_permit": "wait",
    "stop_grace": "5",
    "cost_ceiling": "0.50",
    "hold_ttl": "7 00:00:00",
}
ACCOUNT = {"name": "globex", "currency": "EUR", "limit": "12.345678901", "is_open": "on"}
POOL = {"kind": "queue", "key": "gpu", "limit": "4"}
PRICE = {
    "provider": "private",
    "model": "",
    "unit": "second",
    "currency": "EUR",
    "amount": "0.000000001",
    "valid_from_0": "2026-01-01",
    "valid_from_1": "00:00:00",
}


def add(client: Client, model: type[Model], posted: dict[str, str]) -> Any:
    return client.post(reverse(f"admin:leaseq_{model.__name__.lower()}_add"), posted)


def change(client: Client, row: Model, posted: dict[str, str]) -> Any:
    name = f"admin:leaseq_{type(row).__name__.lower()}_change"
    return client.post(reverse(name, args=[row.pk]), posted)


def test_a_policy_is_added_as_typed(superuser: Client) -> None:
    assert add(superuser, ServingPolicy, POLICY).status_code == 302
    policy = ServingPolicy.objects.get(name="night")
    assert policy.lease_ttl == timedelta(seconds=30)
    assert policy.hold_ttl == timedelta(days=7)
    assert policy.stall_limit is None
    assert policy.cost_ceiling == Decimal("0.5")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"renew_every": "15"}, "renew more often than every 15 s"),
        ({"lease_ttl": "0.5", "renew_every": "0.1"}, "set it to 1 s or more"),
        ({"queue_age_max": "0"}, "Every limit of a policy must be above zero"),
        ({"retry_base": "-1"}, "not negative"),
        ({"run_time_max": "999999999 00:00:00"}, "at most 3650 days"),
        ({"attempts_max": "0"}, "greater than or equal to 1"),
        ({"cost_ceiling": "-0.01"}, "greater than or equal to 0"),
        ({"cost_ceiling": "0.0000000001"}, "no more than 9 decimal places"),
        ({"on_bound": "forget"}, "forget is not one of the available choices"),
        ({"name": "batch"}, "with this Name already exists"),
        ({"lease_ttl": "soon"}, "Enter a valid duration"),
    ],
    ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "",
)
def test_a_policy_that_cannot_work_is_refused_with_a_sentence(
    wrong: dict[str, str], said: str, superuser: Client, policy: ServingPolicy
) -> None:
    response = add(superuser, ServingPolicy, POLICY | wrong)
    assert response.status_code == 200
    assert said in response.content.decode()
    assert list(ServingPolicy.objects.all()) == [policy]


def test_a_change_of_a_policy_writes_only_what_was_changed(
    superuser: Client, policy: ServingPolicy
) -> None:
    before = ServingPolicy.objects.filter(pk=policy.pk).values().get()
    posted = POLICY | {"cost_ceiling": "1", "attempts_max": "5", "name": "renamed"}
    assert change(superuser, policy, posted).status_code == 302
    after = ServingPolicy.objects.filter(pk=policy.pk).values().get()
    assert after == before | {"attempts_max": 5}
    assert "Attempts max" in LogEntry.objects.get().get_change_message()


def test_an_account_is_added_with_nothing_held_or_settled(superuser: Client) -> None:
    posted = ACCOUNT | {"held": "5", "settled": "5"}
    assert add(superuser, Account, posted).status_code == 302
    account = Account.objects.get(name="globex")
    assert (account.limit, account.held, account.settled) == (Decimal("12.345678901"), 0, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"currency": "eur"}, "three capital letters"),
        ({"currency": "EU"}, "three capital letters"),
        ({"limit": "-1"}, "greater than or equal to 0"),
        ({"limit": "NaN"}, "Enter a number"),
        ({"limit": "1" * 21}, "no more than"),
        ({"name": "acme"}, "with this Name already exists"),
    ],
    ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "",
)
def test_an_account_that_cannot_work_is_refused_with_a_sentence(
    wrong: dict[str, str], said: str, superuser: Client, account: Account
) -> None:
    response = add(superuser, Account, ACCOUNT | wrong)
    assert response.status_code == 200
    assert said in response.content.decode()
    assert list(Account.objects.all()) == [account]


def test_of_an_account_only_limit_and_openness_are_changed(superuser: Client, job: Job) -> None:
    before = Account.objects.filter(pk=job.account_id).values().get()
    posted = {"name": "x", "currency": "USD", "limit": "50", "held": "0", "settled": "9"}
    assert change(superuser, job.account, posted).status_code == 302
    after = Account.objects.filter(pk=job.account_id).values().get()
    assert after == before | {"limit": Decimal(50), "is_open": False}
    assert after["held"] == 1


def test_a_form_never_writes_back_a_balance_that_the_services_moved(
    superuser: Client, job: Job
) -> None:
    with CaptureQueriesContext(connection) as captured:
        change(superuser, job.account, {"limit": "50", "is_open": "on"})
    statements = [query["sql"] for query in captured if "leaseq_account" in query["sql"]]
    locked = [number for number, sql in enumerate(statements) if "FOR NO KEY UPDATE" in sql]
    written = [number for number, sql in enumerate(statements) if sql.startswith("UPDATE")]
    assert len(locked) == len(written) == 1
    assert locked < written
    assert "held" not in statements[written[0]]
    assert "settled" not in statements[written[0]]


@pytest.mark.parametrize(
    ("limit", "allowed"), [("1.499999999", False), ("1.5", True), ("1.500000001", True)]
)
def test_a_limit_never_goes_below_what_stands_against_the_account(
    limit: str, allowed: bool, superuser: Client, job: Job
) -> None:
    Account.objects.filter(pk=job.account_id).update(settled="0.5")
    response = change(superuser, job.account, {"limit": limit, "is_open": "on"})
    account = Account.objects.get(pk=job.account_id)
    if allowed:
        assert account.limit == Decimal(limit)
    else:
        assert account.limit == 100
        assert "the limit cannot be below 1.50" in response.content.decode()


def test_a_pool_is_added_and_only_its_limit_changed(superuser: Client) -> None:
    assert add(superuser, PermitPool, POOL).status_code == 302
    pool = PermitPool.objects.get()
    assert change(superuser, pool, {"kind": "policy", "key": "x", "limit": "9"}).status_code == 302
    pool.refresh_from_db()
    assert (pool.kind, pool.key, pool.limit) == ("queue", "gpu", 9)


def test_a_second_pool_for_one_key_is_refused(superuser: Client) -> None:
    add(superuser, PermitPool, POOL)
    response = add(superuser, PermitPool, POOL | {"limit": "5"})
    assert "already exists" in response.content.decode()
    assert PermitPool.objects.get().limit == 4


@pytest.mark.parametrize(("key", "warned"), [("acme", False), ("acne", True)])
def test_a_pool_that_limits_nobody_is_pointed_out(
    key: str, warned: bool, superuser: Client, account: Account
) -> None:
    add(superuser, PermitPool, {"kind": "account", "key": key, "limit": "4"})
    page = superuser.get(reverse("admin:leaseq_permitpool_changelist")).content.decode()
    assert ("limits nothing as yet" in page) is warned


def test_a_price_is_added_and_never_changed(superuser: Client) -> None:
    assert add(superuser, Price, PRICE).status_code == 302
    price = Price.objects.get()
    assert price.amount == Decimal("0.000000001")
    assert price.valid_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert change(superuser, price, PRICE | {"amount": "5"}).status_code == 403
    assert add(superuser, Price, PRICE).status_code == 200
    assert Price.objects.get().amount == Decimal("0.000000001")
