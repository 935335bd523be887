"""The authority's clock: the only place that reads the time for a decision (SPEC B4).

The order is the safety: lock the rows first, then read the clock in a later statement. A clock
read in the statement that waits for the lock is as old as the wait (PROMISES 1.3).
"""

from datetime import datetime

from leaseq.db.transactions import connection


def read() -> datetime:
    """Return the authority's time now, not the transaction's start."""
    with connection().cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment
