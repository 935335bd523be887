"""Rows of every model, most of them by the services, and a browser that is logged in."""

from decimal import Decimal
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client

from leaseq.db import clock
from leaseq.db.identity import new_id
from leaseq.models import (
    Account,
    Attempt,
    ControlPass,
    Epoch,
    Finding,
    OutboxMessage,
    PermitPool,
    Price,
    ProviderRequest,
    ServingPolicy,
    UsageRecord,
    WorkerNode,
)
from leaseq.services import admission, outbox, scheduling
from leaseq.services.admission import AdmissionRequest
from tests.conftest import register_worker

MODELS: list[type[Model]] = sorted(
    apps.get_app_config("leaseq").get_models(), key=lambda one: one.__name__
)
CANARY = "<script>canary</script>"


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def fill_up(count: int, *, first: int, account: str, policy: str) -> None:
    """Make the list of every model this many rows longer."""
    register_worker(f"gpu{first}@here", slots=count, pid=first + 1)
    wanted = AdmissionRequest(task="tests.nothing", queue="gpu", account=account, policy=policy)
    for _ in range(count):
        admission.admit(wanted, actor="user:test")
    while scheduling.reserve("gpu", limit=count).queued:
        pass  # a pass goes only so far down the line
    outbox.take_due(limit=count)
    attempts = list(Attempt.objects.order_by("-pk")[:count])
    assert OutboxMessage.objects.filter(attempt__in=attempts).count() == count
    for number, attempt in enumerate(attempts, start=first):
        _set_up_one_more(number)
        _consume(attempt)


def _set_up_one_more(number: int) -> None:
    now = clock.read()
    Account.objects.create(name=f"account{number}", currency="EUR", limit=1)
    ServingPolicy.objects.create(name=f"policy{number}")
    PermitPool.objects.create(kind="queue", key=f"queue{number}", limit=1)
    Price.objects.create(
        provider=f"p{number}", unit="second", currency="EUR", amount=1, valid_from=now
    )
    Epoch.objects.create(number=number + 2, raised_at=now, actor="user:test", reason="test")
    ControlPass.objects.create(name=f"pass{number}", finished_at=now, summary={"did": number})
    WorkerNode.objects.create(
        id=new_id(),
        name=f"w{number}",
        node="there",
        boot_id="b",
        pid=number,
        start_ticks=1,
        queues=["gpu"],
        pool="solo",
        started_at=now,
        seen_at=now,
    )


def _consume(attempt: Attempt) -> None:
    now = clock.read()
    request(attempt)
    UsageRecord.objects.create(
        attempt=attempt,
        unit="token",
        quantity=Decimal("2.500000"),
        provider="private",
        unit_price=Decimal("0.1"),
        cost=Decimal("0.25"),
        currency="EUR",
        recorded_at=now,
    )
    Finding.objects.create(
        kind="odd",
        severity="warning",
        job_id=attempt.job_id,
        evidence={"seen": CANARY},
        suggested_action="Look.",
        opened_at=now,
    )


def request(attempt: Attempt, **said: Any) -> ProviderRequest:
    """Store a request of this attempt, with what a provider said."""
    key = new_id()
    values: dict[str, Any] = {
        "provider": "private",
        "endpoint": "http://127.0.0.1:8080",
        "idempotency_key": str(key),
        "body_digest": "0" * 64,
        "ends_with_connection": True,
        "fence_epoch": 1,
        "fence": 1,
        "prepared_at": clock.read(),
    }
    return ProviderRequest.objects.create(id=key, attempt=attempt, **values | said)
