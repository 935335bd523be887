"""What the outside world plugs in, so that rooms without Celery can ring it (SPEC D5).

`leaseq.worker.wiring.install` fills these in. Until then nothing can be published, and a ring is
a refusal that says what to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from leaseq.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorbell:
    """A message for one attempt: a hint and no authority (PROMISES S8)."""

    attempt_id: UUID
    task: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """How to reach the broker.

    `publish` sends doorbells and returns an error text per failed one, by attempt id; `ring` asks
    for one pass of the control plane now, by name; `ring_later` after so many seconds.
    """

    publish: Callable[[Sequence[Doorbell]], dict[UUID, str]]
    ring: Callable[[str], None]
    ring_later: Callable[[str, float], None]


_installed: list[Ports] = []


def install(ports: Ports) -> None:
    """Make these the ports of this process; the latest installation counts."""
    _installed[:] = [ports]


def installed() -> Ports:
    """Return the ports of this process; raises Misconfigured where none are installed."""
    if not _installed:
        raise Misconfigured(
            "leaseq is not wired to a Celery app in this process; call "
            "leaseq.worker.wiring.install(app) in the module that makes your Celery app, and "
            "import that app in your project's __init__.py"
        )
    return _installed[0]
