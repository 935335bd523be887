"""What a scripted provider saw: its own record of arrivals and computations (PROMISES V)."""

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Seen(StrEnum):
    """What the server sees, in the order of a request's life.

    Each is written before its effect can be seen outside, so a client never knows more.
    """

    ARRIVED = "arrived"
    REFUSED = "refused"
    COMPUTATION_STARTED = "computation_started"
    ACCEPTED = "accepted"
    ANSWERED = "answered"
    DISCONNECTED = "disconnected"
    COMPUTATION_ENDED = "computation_ended"


class Cause(StrEnum):
    """Why a computation ended."""

    FINISHED = "finished"
    FAILED = "failed"
    DISCONNECTED = "disconnected"
    SHUT_DOWN = "shut_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the log; `at` is on the monotonic clock, `arrival` numbers the requests."""

    seen: Seen
    arrival: int
    key: str
    request_id: str
    body_digest: str
    authorization: str
    at: float
    cause: Cause | None


class Log:
    """The entries so far; written by the server's threads, read and awaited by the test's."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._changed = threading.Condition()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were written."""
        with self._changed:
            return tuple(self._entries)

    @property
    def submits(self) -> Counter[str]:
        """How many requests arrived under each idempotency key."""
        return Counter(one.key for one in self.entries if one.seen is Seen.ARRIVED)

    @property
    def running(self) -> int:
        """How many computations have started and not ended."""
        seen = Counter(one.seen for one in self.entries)
        return seen[Seen.COMPUTATION_STARTED] - seen[Seen.COMPUTATION_ENDED]

    def add(self, entry: Entry) -> None:
        """Write one entry."""
        with self._changed:
            self._entries.append(entry)
            self._changed.notify_all()

    def wait_for(
        self, seen: Seen, *, key: str | None = None, times: int = 1, within_s: float = 5.0
    ) -> Entry:
        """Return the entry that says this for the given time (under a key, if one is given).

        Raises AssertionError, with the log, when it is not there in time.
        """

        def matching() -> list[Entry]:
            return [one for one in self._entries if one.seen is seen and key in {None, one.key}]

        with self._changed:
            if not self._changed.wait_for(lambda: len(matching()) >= times, timeout=within_s):
                lines = "\n".join(str(one) for one in self._entries)
                raise AssertionError(f"no {seen} number {times} within {within_s:g} s:\n{lines}")
            return matching()[times - 1]
