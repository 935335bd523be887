"""What an invariant is, and how its statement finds the rows that break it (SPEC L12).

An invariant is a sentence with a statement that returns the rows that break it, as
(what, id, detail), in any order. It reads in the caller's transaction and streams from the
server, so that no number of violations fills the memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from leaseq.db.transactions import connection
from leaseq.models.fields import Record
from leaseq.rules.transitions import JOB_MOVES, READMISSION_MOVES
from leaseq.vocabulary import TERMINAL_JOB_STATES, EndReason

SETTLE_WITHIN = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One row that breaks an invariant: what it is, its whole id, and what was found."""

    what: str
    key: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the statements are judged by: the authority's time, and how far back policies speak.

    A policy may be tightened, so that its bounds speak of live leases alone; where no policy
    was ever changed, `policies_unchanged` lets them speak of ended leases too.
    """

    now: datetime
    policies_unchanged: bool

    def values(self) -> dict[str, Any]:
        """Return the parameters that a statement may name."""
        moves = [
            (before, after)
            for table in (JOB_MOVES, READMISSION_MOVES)
            for before, ends in table.items()
            for after in ends
        ]
        return {
            "now": self.now,
            "ended_too": self.policies_unchanged,
            "moves_from": [str(before) for before, _ in moves],
            "moves_to": [str(after) for _, after in moves],
            "terminal": sorted(TERMINAL_JOB_STATES),
            "reasons": [str(reason) for reason in EndReason],
            "settle_within": SETTLE_WITHIN,
        }


Finder = Callable[[Scope], Iterator[Violation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A promise about stored rows: its id in PROMISES or SPEC, and who may break it.

    `subject` is the table of which every row is looked at.
    """

    id: str
    sentence: str
    subject: type[Record]
    find: Finder


def by_statement(statement: str) -> Finder:
    """Return the finder that runs a statement with the parameters of a scope."""

    def find(scope: Scope) -> Iterator[Violation]:
        with connection().chunked_cursor() as cursor:
            cursor.execute(statement, scope.values())
            for what, key, detail in cursor:
                yield Violation(what=what, key=str(key), detail=detail)

    return find
