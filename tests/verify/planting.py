"""Corruptions by hand: each breaks one promise, and names the invariant that must say so.

The statements name jobs by what became of them (`%(running)s`). Triggers are off while they run;
a constraint that forbids the corruption is dropped first. All of it is rolled back.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Corruption:
    """The invariant that it breaks, what was done, and the statements that do it."""

    breaks: str
    done: str
    statements: tuple[str, ...]


def corruption(breaks: str, done: str, *statements: str) -> Corruption:
    return Corruption(breaks, done, statements)


def attempt(job: str, number: int = 1) -> str:
    return f"(SELECT id FROM leaseq_attempt WHERE job_id = %({job})s AND number = {number})"


def lease(job: str, *, unit: str = "slot") -> str:
    return f"UPDATE leaseq_lease SET {{}} WHERE job_id = %({job})s AND {unit}_id IS NOT NULL"


def copy(table: str, where: str, **replaced: str) -> str:
    """Insert a copy of a row with some of its columns replaced."""
    values = ", ".join(f"'{name}', {value}" for name, value in replaced.items())
    return (
        f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object({values}))).* "
        f"FROM {table} t WHERE {where}"
    )


def without(table: str, constraint: str) -> str:
    """Drop the constraint that forbids a corruption."""
    return f"ALTER TABLE {table} DROP CONSTRAINT {constraint}"


NEW_ID = "gen_random_uuid()"
REVIVED = "status = 'active', ended_at = NULL, end_reason = NULL"
LAST_EVENT = "job_id = %({0})s AND version = (SELECT version FROM leaseq_job WHERE id = %({0})s)"
NO_UNIQUE_REQUESTS = """
DO $$ DECLARE one record; BEGIN
  FOR one IN SELECT conname FROM pg_constraint
             WHERE conrelid = 'leaseq_providerrequest'::regclass AND contype = 'u' LOOP
    EXECUTE 'ALTER TABLE leaseq_providerrequest DROP CONSTRAINT ' || quote_ident(one.conname);
  END LOOP;
END $$
"""
CLOSED = (
    "state = 'released', held = 0, released = amount, closed_at = created_at + interval '1 hour'"
)
