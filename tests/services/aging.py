"""Let time pass for rows, since no test may wait for it.

All instants of the rows move back by one span, so that they keep their order among each other.
The guards of the tables rightly refuse this: times are set once, and an ended lease never
changes. So the triggers of one table are switched off around its one update, inside one block:
whatever fails in it switches them on again. The checks and exclusions of the tables stay on.
"""

from datetime import timedelta
from functools import cache

from django.db import connection, transaction

from leaseq.models import Job

COLUMNS = """
SELECT table_name, array_agg(column_name::text ORDER BY column_name)
         FILTER (WHERE data_type = 'timestamp with time zone'),
       bool_or(column_name = 'job_id'), bool_or(column_name = 'attempt_id')
FROM information_schema.columns
WHERE table_schema = 'public' AND table_name LIKE 'leaseq\\_%'
GROUP BY table_name ORDER BY table_name
"""
# Leases one by one from the oldest on: all at once, two of a slot might overlap for a moment.
ONE_BY_ONE = """
DO $$
DECLARE one record;
BEGIN
  ALTER TABLE {table} DISABLE TRIGGER USER;
  FOR one IN SELECT * FROM {table} WHERE {rows} ORDER BY created_at LOOP
    UPDATE {table} SET {sets} WHERE id = one.id;
  END LOOP;
  ALTER TABLE {table} ENABLE TRIGGER USER;
END $$
"""
AT_ONCE = """
DO $$
BEGIN
  ALTER TABLE {table} DISABLE TRIGGER USER;
  UPDATE {table} SET {sets} WHERE {rows};
  ALTER TABLE {table} ENABLE TRIGGER USER;
END $$
"""


def let_pass(span: timedelta, *, job: Job | None = None) -> None:
    """Make everything older by this span, or only what belongs to one job."""
    with transaction.atomic(), connection.cursor() as cursor:
        # A table with checks still to be made at commit cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table, instants, names_job, names_attempt in _tables():
            rows = _rows_of(job, table, names_job=names_job, names_attempt=names_attempt)
            if rows is None or not instants:
                continue
            block = ONE_BY_ONE if table == "leaseq_lease" else AT_ONCE
            moved = f"interval '{span / timedelta(microseconds=1):.0f} microseconds'"
            sets = ", ".join(f"{one} = {one} - {moved}" for one in instants)
            cursor.execute(block.format(table=table, rows=rows, sets=sets))
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


@cache
def _tables() -> list[tuple[str, list[str], bool, bool]]:
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS)
        return list(cursor.fetchall())


def _rows_of(job: Job | None, table: str, *, names_job: bool, names_attempt: bool) -> str | None:
    if job is None:
        return "true"
    if table == "leaseq_job":
        return f"id = '{job.pk}'"
    if names_job:
        return f"job_id = '{job.pk}'"
    if names_attempt:
        return f"attempt_id IN (SELECT id FROM leaseq_attempt WHERE job_id = '{job.pk}')"
    return None
