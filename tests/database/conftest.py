"""A world with a row of every table, and a way to see which sentence PostgreSQL refuses by."""

from collections.abc import Callable
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from leaseq.models import Epoch, Finding, Job, PermitPool
from leaseq.services import attempts, dispatch, scheduling, usage
from leaseq.services.dispatch import Target
from leaseq.services.workers import Registered
from leaseq.vocabulary import PoolKind
from tests.services import stages

TARGET = Target(provider="private", endpoint="http://model", model="m", ends_with_connection=True)


@pytest.fixture
def world(admit: Callable[..., Job], worker: Registered, prices: object) -> Job:
    """A job that runs at a provider with a slot, a permit, a hold and usage; another is queued."""
    PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=9)
    job = admit(idempotency_key="k")
    stages.queue_up()
    claimed = stages.claim(job, worker)
    intent = dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")
    dispatch.record_accepted(intent, provider_request_id="r1")
    dispatch.record_started(intent)
    act = attempts.owner_act(claimed.proof)
    usage.book(
        act.locked.attempt,
        job=act.locked.job,
        provider="private",
        model="m",
        quantities={"prompt_token": Decimal(10)},
        now=act.story.now,
    )
    Finding.objects.create(
        kind="test", severity="warning", job=job, opened_at=job.submitted_at, evidence={}
    )
    Epoch.objects.create(number=2, raised_at=job.submitted_at, actor="a", reason="r")
    admit()
    scheduling.reserve("gpu", limit=1)
    job.refresh_from_db()
    return job


def sentence(statement: str, *, guards_of: str | None = None) -> str:
    """Run a statement and return the name of the constraint that refuses it, or an empty text.

    What would be refused at the commit is asked for at once; nothing of the statement stays.
    `guards_of` names a table whose triggers are off meanwhile, so that its checks are reached.
    """
    with connection.cursor() as cursor:
        # What the fixtures left to be checked, or the table could not be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        before = transaction.savepoint()
        if guards_of is not None:
            cursor.execute(f"ALTER TABLE {guards_of} DISABLE TRIGGER USER")
        try:
            cursor.execute(statement)
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except IntegrityError as error:
            diagnosis = getattr(error.__cause__, "diag", None)
            return str(getattr(diagnosis, "constraint_name", None) or error)
        finally:
            transaction.savepoint_rollback(before)
    return ""


def copy_of(table: str, *, where: str = "true", **changed: str) -> str:
    """Return the INSERT of a copy of a row, with some values (SQL expressions) changed."""
    values = ", ".join(f"'{name}', {value}" for name, value in changed.items())
    return (
        f"INSERT INTO {table} SELECT (jsonb_populate_record(x, jsonb_build_object({values}))).* "
        f"FROM {table} x WHERE {where} LIMIT 1"
    )
