"""A task and its delivery, for the tests of the runner."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leaseq.models import Attempt, WorkerNode
from leaseq.services import attempts
from leaseq.vocabulary import (
    EndReason,
)
from leaseq.worker import runner
from leaseq.worker.handle import Lease

NAME = "tests.nothing"


@dataclass
class Task:
    """What the runner needs of a leased task; keeps what it was called with."""

    act: Callable[..., Any] = lambda *_args, **_kwargs: "done"
    name: str = NAME
    provider: str = "local"
    takes_lease: bool = True
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.act(*args, **kwargs)


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*_args: Any) -> Any:
        raise error

    return act


def the_attempt(number: int = 1) -> Attempt:
    return Attempt.objects.get(number=number)


def deliver(act: Callable[..., Any], **options: Any) -> Any:
    return runner.deliver(Task(act, **options), the_attempt().pk)


def taken_away(lease: Lease) -> None:
    worker = WorkerNode.objects.get()
    assert attempts.lose_of_worker(
        lease.attempt_id, worker_id=worker.pk, cause=EndReason.WORKER_LOST
    )
