"""Every invariant that today's tables can show, checked on a live installation (SPEC L12).

Left out, since no table can show it: what a caller, a provider or a broker saw (L6, L9, V3-V6,
C1-C5, Q1, Q3), bounds on time to come (L10, L11, Q5), and what depends on a provider's deadline
(J6). The hash chain of A1 is not written yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.db import transaction

from leaseq.conf import settings
from leaseq.db import clock
from leaseq.db.transactions import connection
from leaseq.models.fields import Record
from leaseq.queries import verify_attempts, verify_jobs, verify_leases, verify_money
from leaseq.queries.invariants import Invariant, Scope, Violation

INVARIANTS: tuple[Invariant, ...] = (
    *verify_leases.INVARIANTS,
    *verify_jobs.INVARIANTS,
    *verify_attempts.INVARIANTS,
    *verify_money.INVARIANTS,
)
ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One invariant: how many rows were looked at, how many break it, and the first of them."""

    invariant: Invariant
    rows: int
    violations: int
    shown: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The verdict over all invariants, as of one moment of the authority."""

    at: datetime
    checked: tuple[Checked, ...]

    @property
    def is_green(self) -> bool:
        """Whether nothing breaks any invariant."""
        return not any(one.violations for one in self.checked)


def verify(*, shown_max: int, policies_unchanged: bool = False) -> Verified:
    """Check every invariant in one read-only snapshot, so that a live system can be checked.

    At most `shown_max` violations of each are kept, and all are counted. It takes no lock that a
    writer waits for. Raises RuntimeError inside a transaction: a snapshot is one of its own.
    """
    with transaction.atomic(using=settings().database, durable=True):
        with connection().cursor() as cursor:
            cursor.execute(ONE_SNAPSHOT)
        now = clock.read()
        scope = Scope(now=now, policies_unchanged=policies_unchanged)
        return Verified(at=now, checked=tuple(check(INVARIANTS, scope=scope, shown_max=shown_max)))


def check(invariants: Sequence[Invariant], *, scope: Scope, shown_max: int) -> Iterator[Checked]:
    """Check these invariants in the caller's transaction, one after the other."""
    counts: dict[type[Record], int] = {}
    for one in invariants:
        if one.subject not in counts:
            counts[one.subject] = one.subject.objects.count()
        found = one.find(scope)
        shown = tuple(islice(found, shown_max))
        yield Checked(
            invariant=one,
            rows=counts[one.subject],
            violations=len(shown) + sum(1 for _ in found),
            shown=shown,
        )
