"""The outbox is sent outside transactions; what the broker did not take is sent again (D5)."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connections

from leaseq.controllers import publish
from leaseq.controllers.base import PassLimits
from leaseq.db import clock
from leaseq.errors import Misconfigured
from leaseq.models import Attempt, ControlPass, Job, OutboxMessage
from leaseq.services import ports, scheduling
from leaseq.services.ports import Doorbell
from leaseq.services.workers import Registered
from tests.conftest import RecordingPorts, register_worker

LIMITS = PassLimits(batch=100, seconds=30)


@pytest.fixture
def seven_queued(admit: Callable[..., Job]) -> list[UUID]:
    """Seven attempts whose messages were written and not yet sent."""
    register_worker("big@here", slots=7)
    for _ in range(7):
        admit()
    scheduling.reserve("gpu", limit=7)
    return list(Attempt.objects.order_by("pk").values_list("pk", flat=True))


@pytest.mark.parametrize("batch", [2, 7, 8], ids=lambda batch: f"batch-of-{batch}")
def test_every_due_message_is_sent_once(
    seven_queued: list[UUID], recording_ports: RecordingPorts, batch: int
) -> None:
    summary = publish.run_once(PassLimits(batch=batch, seconds=30))
    assert summary.counts == {"sent": 7}
    assert summary.complete
    assert sorted(one.attempt_id for one in recording_ports.doorbells) == seven_queued
    assert publish.run_once(LIMITS).counts == {}
    assert len(recording_ports.doorbells) == 7


def test_what_the_broker_did_not_take_says_why_and_is_sent_a_second_later(
    seven_queued: list[UUID],
    recording_ports: RecordingPorts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording_ports.broken = True
    summary = publish.run_once(LIMITS)
    assert summary.counts == {"not_sent": 7}
    assert not summary.complete
    errors = set(OutboxMessage.objects.values_list("last_error", flat=True))
    assert errors == {
        "ConnectionError: the broker is away",
        "not tried: ConnectionError: the broker is away",
    }

    recording_ports.broken = False
    real = clock.read
    monkeypatch.setattr(clock, "read", lambda: real() + timedelta(seconds=2))
    assert publish.run_once(LIMITS).counts == {"sent": 7}


def test_a_broker_that_is_away_is_asked_with_a_few_messages_only(
    seven_queued: list[UUID],
) -> None:
    asked: list[int] = []

    def publish_nothing(bells: Sequence[Doorbell]) -> dict[UUID, str]:
        asked.append(len(bells))
        return {one.attempt_id: "TimeoutError" for one in bells}

    ports.install(
        ports.Ports(publish=publish_nothing, ring=lambda _: None, ring_later=lambda _, __: None)
    )
    publish.run_once(LIMITS)
    assert asked == [5]


def test_a_message_that_fails_alone_keeps_no_other_from_being_sent(
    seven_queued: list[UUID],
) -> None:
    poison = seven_queued[0]

    def publish_others(bells: Sequence[Doorbell]) -> dict[UUID, str]:
        return {poison: "OSError: too long"} if poison in {b.attempt_id for b in bells} else {}

    ports.install(
        ports.Ports(publish=publish_others, ring=lambda _: None, ring_later=lambda _, __: None)
    )
    assert publish.run_once(LIMITS).counts == {"not_sent": 1, "sent": 6}
    failed = OutboxMessage.objects.exclude(last_error="")
    assert [one.attempt_id for one in failed] == [poison]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_sent_inside_a_transaction(seven_queued: list[UUID]) -> None:
    inside: list[bool] = []

    def look(bells: Sequence[Doorbell]) -> dict[UUID, str]:
        inside.append(connections["default"].in_atomic_block)
        return {}

    ports.install(ports.Ports(publish=look, ring=lambda _: None, ring_later=lambda _, __: None))
    publish.run_once(LIMITS)
    assert inside == [False, False]


def test_a_process_without_a_celery_app_is_told_and_the_messages_stay_due(
    seven_queued: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_installed", [])
    with pytest.raises(Misconfigured, match="wiring"):
        publish.run_once(LIMITS)
    assert OutboxMessage.objects.filter(sends=0).count() == 7
    assert not ControlPass.objects.filter(name="publish").exists()


def test_a_pass_without_messages_writes_that_it_ran(worker: Registered) -> None:
    assert publish.run_once(LIMITS).complete
    assert ControlPass.objects.get(name="publish").summary["counts"] == {}
