"""Does anybody consume the control queue: yes, no, or nobody can know (case I5)."""

from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from leaseq.worker import consumers

GPU = {"name": "gpu"}
CONTROL = {"name": "leaseq-control"}


class Inspection:
    """What the workers would answer."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers

    def active_queues(self) -> Any:
        if isinstance(self._answers, Exception):
            raise self._answers
        return self._answers


@pytest.mark.parametrize(
    ("answers", "consumed"),
    [
        ({"w1": [GPU], "w2": [GPU, CONTROL]}, True),
        ({"w1": [CONTROL]}, True),
        ({"w1": [GPU], "w2": [GPU]}, False),
        ({"w1": []}, False),
        ({}, None),
        (None, None),
        (OperationalError("the broker is away"), None),
        (ConnectionRefusedError(), None),
    ],
    ids=[
        "one-of-two-does",
        "the-only-one-does",
        "gpu-workers-alone",
        "a-worker-of-no-queue",
        "empty-answer",
        "no-answer",
        "no-broker",
        "refused",
    ],
)
def test_the_workers_say_whether_the_control_queue_is_consumed(
    monkeypatch: pytest.MonkeyPatch, answers: Any, consumed: bool | None
) -> None:
    app = Celery("asked", broker="memory://", set_as_current=False)
    waits: list[float] = []

    def inspect(*, timeout: float) -> Inspection:
        waits.append(timeout)
        return Inspection(answers)

    monkeypatch.setattr(app.control, "inspect", inspect)
    assert consumers.control_queue_is_consumed(app) is consumed
    assert waits == [consumers.ANSWER_WITHIN_SECONDS]


def test_an_app_without_workers_answers_within_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "ANSWER_WITHIN_SECONDS", 0.05)
    app = Celery("alone", broker="memory://", set_as_current=False)
    with app:
        assert consumers.control_queue_is_consumed(app) is None
