from collections.abc import Callable
from datetime import timedelta

import pytest

from leaseq.models import Job, OutboxMessage
from leaseq.services import outbox, scheduling, workers
from leaseq.services.workers import Registered
from tests.services import stages
from tests.services.aging import let_pass

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def reserved(job: Job) -> Job:
    """A job whose message was written and not yet sent."""
    scheduling.reserve("gpu", limit=1)
    return job


def wait(worker: Registered, span: timedelta) -> None:
    let_pass(span)
    workers.seen(worker.worker_id)


def test_a_message_is_taken_once_and_names_attempt_task_and_queue(reserved: Job) -> None:
    (bell,) = outbox.take_due(limit=10)

    assert (bell.attempt_id, bell.task, bell.queue) == (
        reserved.attempts.get().pk,
        "tests.nothing",
        "gpu",
    )
    assert OutboxMessage.objects.get().sends == 1
    assert outbox.take_due(limit=10) == []


def test_the_first_message_goes_out_though_no_worker_is_there(reserved: Job) -> None:
    assert len(outbox.take_due(limit=10)) == 1


@pytest.mark.parametrize(
    ("waits", "again"), [pytest.param(9, False, id="before"), pytest.param(10, True, id="after")]
)
def test_an_unclaimed_attempt_is_rung_again_after_the_claim_grace(
    reserved: Job, worker: Registered, waits: int, again: bool
) -> None:
    first = outbox.take_due(limit=10)
    wait(worker, waits * SECOND)
    assert outbox.take_due(limit=10) == (first if again else [])


def test_the_grace_doubles_each_time(reserved: Job, worker: Registered) -> None:
    spans = []
    for _ in range(4):
        assert len(outbox.take_due(limit=10)) == 1
        message = OutboxMessage.objects.get()
        spans.append(message.send_at)
        grace = 10 * 2 ** (message.sends - 1)
        wait(worker, (grace - 1) * SECOND)
        assert outbox.take_due(limit=10) == []
        wait(worker, 1 * SECOND)
    assert OutboxMessage.objects.get().sends == 4


def test_nothing_is_rung_again_while_every_slot_of_the_queue_is_taken(
    admit: Callable[..., Job], worker: Registered
) -> None:
    for _ in range(3):
        admit()
    queued = stages.queue_up()
    for index in range(2):
        stages.claim(queued[index], worker, slot=index)
    wait(worker, 10 * SECOND)
    assert outbox.take_due(limit=10) == []
    assert OutboxMessage.objects.get().sends == 1

    let_pass(20 * SECOND)
    workers.seen(worker.worker_id)

    assert len(outbox.take_due(limit=10)) == 1


def test_a_message_the_broker_did_not_take_was_not_sent(reserved: Job) -> None:
    """It goes out again soon, with no free slot asked for and no grace grown."""
    for _ in range(3):
        (bell,) = outbox.take_due(limit=10)
        outbox.note_failures({bell.attempt_id: "ConnectionError: \0" + "x" * 400})
        message = OutboxMessage.objects.get()
        assert (message.sends, len(message.last_error)) == (0, outbox.ERROR_LENGTH_MAX)
        assert outbox.take_due(limit=10) == []
        let_pass(1 * SECOND)


def test_a_failure_noted_of_what_was_claimed_meanwhile_is_nothing(
    reserved: Job, worker: Registered
) -> None:
    (bell,) = outbox.take_due(limit=10)
    stages.claim(reserved, worker)
    outbox.note_failures({bell.attempt_id: "late"})
    outbox.note_failures({})
    assert OutboxMessage.objects.count() == 0


def test_no_more_is_taken_than_the_limit_and_the_oldest_first(
    admit: Callable[..., Job],
) -> None:
    first = admit()
    scheduling.reserve("gpu", limit=1)
    let_pass(SECOND)
    admit()
    scheduling.reserve("gpu", limit=1)

    (bell,) = outbox.take_due(limit=1)

    assert bell.attempt_id == first.attempts.get().pk
