"""PassLimits in, PassSummary out: what every pass of the control plane has (SPEC G1).

A pass walks rows that look due, in pages, and gives each to a service that decides for itself
under its locks. So a pass may run twice at once, late, or end midway, and nothing is done twice.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from uuid import UUID

from django.db import IntegrityError, OperationalError

from leaseq.errors import LeaseqBug
from leaseq.services import passes

log = logging.getLogger(__name__)

ERRORS = "errors"
# One row that cannot be handled is counted and left; whatever else is raised ends the pass.
OF_ONE_ROW = (LeaseqBug, IntegrityError, OperationalError)

Row = tuple[str, UUID]
Page = Callable[[str], Sequence[Row]]
"""Gives the rows behind a key, at most one batch, in the order of their keys; "" is the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """How many rows a pass takes at once, and for how many seconds it begins new ones."""

    batch: int = 100
    seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSummary:
    """What a pass did: counts by verdict, and whether it came to the end of what was due."""

    name: str
    counts: dict[str, int] = field(default_factory=dict)
    complete: bool = True


class PassRun:
    """One run of one pass: its time, its counts, and where it goes on next time."""

    def __init__(self, name: str, *, limits: PassLimits) -> None:
        self.name = name
        self.limits = limits
        self.complete = True
        self._counts: Counter[str] = Counter()
        self._end = self._part_end = monotonic() + limits.seconds
        self._go_on_behind = passes.left_off(name)
        self._left_off: dict[str, str] = {}

    def share(self, *, parts: int) -> None:
        """Give the coming part its share of the time left, so that no part starves the rest."""
        now = monotonic()
        self._part_end = now + max(self._end - now, 0.0) / parts

    def has_time(self) -> bool:
        """Say whether the part under way may begin something more."""
        return monotonic() < self._part_end

    def count(self, word: str, *, times: int = 1) -> None:
        """Count verdicts of one kind; none is no kind to be told of."""
        if times:
            self._counts[word] += times

    def stop_short(self) -> None:
        """Say that something due was left to the next pass."""
        self.complete = False

    def guarded(self, act: Callable[[], None], *, of: object) -> None:
        """Do one thing; where it cannot be done, log what it was about and count an error."""
        try:
            act()
        except OF_ONE_ROW:
            log.exception("leaseq: pass %s could not handle %s", self.name, of)
            self.count(ERRORS)

    def walk(self, part: str, *, page: Page, act: Callable[[UUID], str]) -> None:
        """Give each row of all pages to `act`, once, and count the word that it returns.

        Each page begins behind the last row of the one before, and a walk that ran out of time
        goes on behind its last row in the next pass: rows that need nothing, or cannot be
        handled, keep nobody else from their turn (case D8). At least one row is taken.
        """
        began_behind = self._go_on_behind.get(part, "")
        seen: set[UUID] = set()
        for start in [began_behind, ""] if began_behind else [""]:
            if not self._walk_from(start, part=part, page=page, act=act, seen=seen):
                self.stop_short()
                return

    def _walk_from(
        self, after: str, *, part: str, page: Page, act: Callable[[UUID], str], seen: set[UUID]
    ) -> bool:
        rows = page(after)
        while rows:
            for key, row_id in rows:
                if row_id not in seen:
                    seen.add(row_id)
                    self.guarded(partial(self._take, act, row_id), of=row_id)
                after = key
                if not self.has_time():
                    self._left_off[part] = after
                    return False
            rows = page(after) if len(rows) == self.limits.batch else []
        return True

    def _take(self, act: Callable[[UUID], str], row_id: UUID) -> None:
        self.count(act(row_id))

    def finish(self) -> PassSummary:
        """Write that the pass finished, and return what it did."""
        counts = dict(sorted(self._counts.items()))
        passes.note(self.name, counts=counts, complete=self.complete, left_off=self._left_off)
        return PassSummary(name=self.name, counts=counts, complete=self.complete)
