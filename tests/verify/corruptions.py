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

LEASES = (
    corruption(
        "L1",
        "granted before the last one ended",
        lease("running").format("created_at = created_at - interval '1 day'"),
    ),
    corruption(
        "P1",
        "two live leases of a slot",
        "DROP INDEX one_live_lease_per_slot",
        lease("failed").format(REVIVED),
    ),
    corruption("L2", "an older fence for a newer grant", lease("running").format("fence = 0")),
    corruption(
        "L2",
        "one fence for two leases",
        "ALTER TABLE leaseq_lease DROP CONSTRAINT a_fencing_token_never_repeats",
        lease("running").format(
            "fence = (SELECT min(fence) FROM leaseq_lease WHERE pool_id IS NOT NULL)"
        ),
    ),
    corruption(
        "L2",
        "a successor with its predecessor's older fence",
        "UPDATE leaseq_lease SET fence = 0 WHERE predecessor_id IS NOT NULL "
        "AND job_id = %(running)s",
    ),
    corruption(
        "L3",
        "sent with a fence that nobody was given",
        "UPDATE leaseq_providerrequest SET fence = fence + 100000 "
        f"WHERE attempt_id = {attempt('settled')}",
    ),
    corruption(
        "L3",
        "sent after the lease had ended",
        f"UPDATE leaseq_lease SET ended_at = created_at WHERE attempt_id = {attempt('settled')}",
    ),
    corruption(
        "L4",
        "more than a ttl",
        lease("running").format("expires_at = expires_at + interval '1 hour'"),
    ),
    corruption(
        "L4",
        "more than the reservation lifetime",
        "UPDATE leaseq_job SET first_reserved_at = first_reserved_at - interval '1 day' "
        "WHERE id = %(running)s",
    ),
    corruption(
        "L4",
        "more than the renewal budget",
        lease("running").format("renewal_count = 20000, version = 20001"),
    ),
    corruption("L5", "a version too many", lease("running").format("version = version + 1")),
    corruption("L5", "renewed at no time", lease("running").format("renewed_at = NULL")),
    corruption(
        "L8",
        "transferred to nobody",
        "UPDATE leaseq_lease SET predecessor_id = NULL WHERE job_id = %(running)s",
    ),
    corruption(
        "L8",
        "renewals forgotten at a transfer",
        "UPDATE leaseq_lease SET renewals_before = 7 "
        "WHERE job_id = %(running)s AND predecessor_id IS NOT NULL",
    ),
    corruption(
        "L8",
        "used after its end",
        "UPDATE leaseq_jobevent SET at = at + interval '1 day' "
        "WHERE job_id = %(completed)s AND kind = 'claimed'",
    ),
    corruption("SPEC L1", "a live lease of a closed attempt", lease("completed").format(REVIVED)),
    corruption(
        "SPEC L1",
        "a lease that ended after its attempt",
        lease("completed", unit="pool").format("ended_at = ended_at + interval '1 hour'"),
    ),
    corruption(
        "SPEC L1", "a lease of another job", lease("completed").format("job_id = %(failed)s")
    ),
    corruption(
        "SPEC N",
        "the job ended, its lease did not",
        "UPDATE leaseq_job SET state = 'failed', reason = 'task_error', ended_at = changed_at "
        "WHERE id = %(running)s",
    ),
    corruption("Q6", "more permits than the limit", 'UPDATE leaseq_permitpool SET "limit" = 1'),
    corruption(
        "Q7",
        "a lease in another worker's hands",
        lease("running").format(
            "worker_id = (SELECT id FROM leaseq_workernode WHERE name = 'gpu2@there')"
        ),
    ),
    corruption(
        "SPEC D2",
        "a dead worker offers slots",
        "UPDATE leaseq_workernode SET state = 'dead' WHERE name = 'gpu1@here'",
    ),
    corruption(
        "Q4",
        "no message for a queued attempt",
        f"DELETE FROM leaseq_outboxmessage WHERE attempt_id = {attempt('queued')}",
    ),
    corruption(
        "Q4",
        "a message for a running attempt",
        copy("leaseq_outboxmessage", "true", attempt_id=attempt("running")),
    ),
)

JOBS = (
    corruption(
        "J1a",
        "an event is gone",
        "DELETE FROM leaseq_jobevent WHERE job_id = %(completed)s AND version = 2",
    ),
    corruption(
        "J1b",
        "an event begins elsewhere",
        "UPDATE leaseq_jobevent SET from_state = 'queued' "
        "WHERE job_id = %(completed)s AND version = 2",
    ),
    corruption(
        "J1b",
        "a move outside the table",
        "UPDATE leaseq_jobevent SET to_state = 'running' WHERE job_id = %(queued)s AND version = 3",
    ),
    corruption(
        "J1c", "a version without event", "UPDATE leaseq_job SET version = 99 WHERE id = %(queued)s"
    ),
    corruption(
        "J1c",
        "a state without event",
        "UPDATE leaseq_job SET state = 'reserved' WHERE id = %(queued)s",
    ),
    corruption(
        "J1c",
        "a job without events",
        "DELETE FROM leaseq_jobevent WHERE job_id = %(waiting)s",
    ),
    corruption(
        "J2a",
        "work after the end",
        copy(
            "leaseq_jobevent",
            LAST_EVENT.format("completed"),
            id="90001",
            version="99",
            kind="'claimed'",
        ),
    ),
    corruption(
        "J2a",
        "another end",
        "UPDATE leaseq_job SET ended_at = ended_at + interval '1 hour' WHERE id = %(completed)s",
    ),
    corruption(
        "J2b",
        "completed by a failed attempt",
        "UPDATE leaseq_attempt SET state = 'failed' WHERE job_id = %(completed)s",
    ),
    corruption(
        "J2b",
        "cancelled by a rejected attempt",
        "UPDATE leaseq_attempt SET state = 'rejected' WHERE job_id = %(cancelled)s",
    ),
    corruption(
        "J4",
        "age was moved",
        "UPDATE leaseq_job SET submitted_at = submitted_at + interval '1 second' "
        "WHERE id = %(waiting)s",
    ),
    corruption(
        "J4",
        "first reservation was moved",
        "UPDATE leaseq_job SET first_reserved_at = first_reserved_at + interval '1 second' "
        "WHERE id = %(running)s",
    ),
    corruption(
        "J4",
        "queue deadline was moved",
        "UPDATE leaseq_job SET queue_deadline_at = queue_deadline_at + interval '1 second' "
        "WHERE id = %(waiting)s",
    ),
    corruption(
        "J10",
        "a job ended because",
        "UPDATE leaseq_job SET reason = 'because' WHERE id = %(failed)s",
    ),
    corruption(
        "J10",
        "an attempt ended because",
        "UPDATE leaseq_attempt SET reason = 'because' WHERE job_id = %(failed)s",
    ),
    corruption("J10", "a lease ended because", lease("failed").format("end_reason = 'because'")),
    corruption(
        "J10",
        "a hold closed because",
        "UPDATE leaseq_hold SET reason = 'because' WHERE job_id = %(failed)s",
    ),
    corruption(
        "L7",
        "time went back",
        "UPDATE leaseq_jobevent SET at = at - interval '1 hour' "
        "WHERE job_id = %(completed)s AND version = 5",
    ),
    corruption(
        "A1", "nobody did it", "UPDATE leaseq_jobevent SET actor = ' ' WHERE job_id = %(failed)s"
    ),
    corruption(
        "A2",
        "cancelled for no reason",
        "UPDATE leaseq_jobevent SET reason = '' WHERE kind = 'cancel_asked'",
    ),
    corruption(
        "P15",
        "admitted by no event",
        "UPDATE leaseq_jobevent SET kind = 'appeared' WHERE job_id = %(waiting)s",
    ),
    corruption(
        "P15",
        "admitted without attempt 1",
        "UPDATE leaseq_attempt SET number = 2 WHERE job_id = %(waiting)s",
    ),
    corruption(
        "P15",
        "admitted without a hold",
        "DELETE FROM leaseq_ledgerentry WHERE job_id = %(waiting)s",
        "DELETE FROM leaseq_hold WHERE job_id = %(waiting)s",
    ),
    corruption(
        "Q2",
        "one key, two jobs",
        "DROP INDEX one_job_per_account_and_idempotency_key",
        "UPDATE leaseq_job SET idempotency_key = 'once' WHERE id = %(running)s",
    ),
)

ATTEMPTS = (
    corruption(
        "J3a",
        "an ended job with an open attempt",
        "UPDATE leaseq_attempt SET state = 'open', ended_at = NULL, reason = NULL "
        "WHERE job_id = %(completed)s",
    ),
    corruption(
        "J3a",
        "two open attempts",
        "DROP INDEX one_unclosed_attempt_per_job",
        copy("leaseq_attempt", "job_id = %(waiting)s", id=NEW_ID, number="2"),
    ),
    corruption(
        "J3b",
        "a number left out",
        f"UPDATE leaseq_attempt SET number = 7 WHERE id = {attempt('lost', 2)}",
    ),
    corruption(
        "J3b",
        "another attempt is current",
        "UPDATE leaseq_job SET current_attempt_number = 1 WHERE id = %(lost)s",
    ),
    corruption(
        "J3c",
        "opened before the last was closed",
        "UPDATE leaseq_attempt SET opened_at = opened_at - interval '1 second' "
        f"WHERE id = {attempt('lost', 2)}",
    ),
    corruption(
        "J3c",
        "opened while the sent request lived",
        "UPDATE leaseq_providerrequest SET state = 'accepted', ended_at = NULL "
        f"WHERE attempt_id = {attempt('resent')}",
    ),
    corruption(
        "J5a",
        "claimed before it was reserved",
        "UPDATE leaseq_attempt SET reserved_at = claimed_at + interval '1 second' "
        "WHERE job_id = %(completed)s",
    ),
    corruption(
        "J5a",
        "accepted before it was prepared",
        "UPDATE leaseq_providerrequest SET accepted_at = prepared_at - interval '1 second' "
        f"WHERE attempt_id = {attempt('settled')}",
    ),
    corruption(
        "J5b",
        "running without a start",
        "UPDATE leaseq_attempt SET started_at = NULL, progress_at = NULL "
        "WHERE job_id = %(running)s",
    ),
    corruption(
        "J5b",
        "a start without its event",
        "UPDATE leaseq_attempt SET started_at = started_at + interval '1 microsecond' "
        "WHERE job_id = %(running)s",
    ),
    corruption(
        "J7",
        "sent before the claim",
        "UPDATE leaseq_providerrequest SET prepared_at = prepared_at - interval '1 hour' "
        f"WHERE attempt_id = {attempt('settled')}",
    ),
    corruption(
        "J7",
        "sent without a recorded intent",
        "DELETE FROM leaseq_jobevent WHERE kind = 'intent_recorded' AND job_id = %(settled)s",
    ),
    corruption(
        "J8",
        "possibly sent taken back",
        "UPDATE leaseq_attempt SET possibly_sent = false WHERE job_id = %(settled)s",
    ),
    corruption(
        "J9",
        "unknown since never",
        "UPDATE leaseq_attempt SET unknown_since = NULL WHERE job_id = %(unknown)s",
    ),
    corruption(
        "J9",
        "unknown after its end",
        "UPDATE leaseq_attempt SET unknown_since = ended_at + interval '1 hour' "
        "WHERE job_id = %(given_up)s",
    ),
    corruption(
        "SPEC N1",
        "an attempt not counted",
        "UPDATE leaseq_job SET attempts_counted = 1 WHERE id = %(lost)s",
    ),
    corruption(
        "SPEC L3",
        "renewals forgotten",
        "UPDATE leaseq_job SET renewals_used = 0 WHERE id = %(lost)s",
    ),
    corruption(
        "SPEC L3",
        "reserved time forgotten",
        "UPDATE leaseq_job SET reserved_time_used = interval '0' WHERE id = %(lost)s",
    ),
    corruption(
        "V1",
        "one key for all requests",
        NO_UNIQUE_REQUESTS,
        "UPDATE leaseq_providerrequest SET idempotency_key = 'same'",
    ),
    corruption(
        "V1",
        "two requests of one attempt",
        NO_UNIQUE_REQUESTS,
        copy(
            "leaseq_providerrequest",
            f"attempt_id = {attempt('settled')}",
            id=NEW_ID,
            idempotency_key="'b'",
        ),
    ),
    corruption(
        "V2",
        "two requests alive",
        "UPDATE leaseq_providerrequest SET ended_at = ended_at + interval '1 hour' "
        f"WHERE attempt_id = {attempt('resent')}",
    ),
)

MONEY = (
    corruption(
        "M1",
        "another currency",
        "UPDATE leaseq_ledgerentry SET currency = 'USD' WHERE job_id = %(settled)s",
    ),
    corruption(
        "M1",
        "a settlement that releases",
        "UPDATE leaseq_ledgerentry SET target = 'available' "
        "WHERE job_id = %(settled)s AND kind = 'settle'",
    ),
    corruption(
        "M1",
        "an entry of another job",
        "UPDATE leaseq_ledgerentry SET job_id = %(failed)s WHERE job_id = %(settled)s",
    ),
    corruption(
        "M2",
        "settled more than the ledger moved",
        "UPDATE leaseq_hold SET settled = settled + 0.1, released = released - 0.1 "
        "WHERE job_id = %(settled)s",
    ),
    corruption(
        "M2",
        "parts that are not the whole",
        "ALTER TABLE leaseq_hold DROP CONSTRAINT authorised_is_held_and_settled_and_released",
        "UPDATE leaseq_hold SET released = released - 0.000000001 WHERE job_id = %(failed)s",
    ),
    corruption(
        "M3", "more held than holds say", "UPDATE leaseq_account SET held = held + 0.000000001"
    ),
    corruption(
        "M3", "more settled than the ledger", "UPDATE leaseq_account SET settled = settled + 1"
    ),
    corruption("M3", "beyond the limit", 'UPDATE leaseq_account SET "limit" = 0'),
    corruption(
        "M4",
        "settled twice",
        copy(
            "leaseq_ledgerentry",
            "kind = 'settle' AND job_id = %(settled)s",
            id="90001",
            key="'again'",
        ),
    ),
    corruption(
        "M5",
        "released because a lease ran out",
        "UPDATE leaseq_hold SET reason = 'lease_expired' WHERE job_id = %(failed)s",
    ),
    corruption(
        "M5",
        "released while the outcome is unknown",
        f"UPDATE leaseq_hold SET {CLOSED}, reason = 'never_sent' WHERE job_id = %(unknown)s",
    ),
    corruption(
        "M5",
        "expired before its time",
        "UPDATE leaseq_hold SET expires_at = closed_at + interval '1 day' "
        "WHERE job_id = %(hold_expired)s",
    ),
    corruption(
        "M6",
        "money moved with a lease",
        "UPDATE leaseq_ledgerentry SET at = (SELECT max(created_at) FROM leaseq_lease "
        "WHERE job_id = %(failed)s) WHERE job_id = %(failed)s AND kind = 'release'",
    ),
    corruption(
        "M7",
        "an entry without its event",
        "UPDATE leaseq_ledgerentry SET at = at + interval '1 second' "
        "WHERE job_id = %(settled)s AND kind = 'settle'",
    ),
    corruption(
        "M7",
        "an event of money that never moved",
        'UPDATE leaseq_jobevent SET data = data || \'{"settled": "0.5"}\' '
        "WHERE job_id = %(settled)s AND kind = 'hold_settled'",
    ),
    corruption(
        "M8a",
        "usage at another price",
        "UPDATE leaseq_usagerecord SET cost = cost + 0.000000001 WHERE cost IS NOT NULL",
    ),
    corruption(
        "M8a",
        "settled without a price",
        "UPDATE leaseq_usagerecord SET settled_by_id = (SELECT min(id) FROM leaseq_ledgerentry) "
        "WHERE cost IS NULL",
    ),
    corruption(
        "M8b",
        "settled less than was used",
        "UPDATE leaseq_usagerecord SET quantity = quantity * 2, cost = cost * 2 "
        f"WHERE attempt_id = {attempt('settled')}",
    ),
    corruption(
        "M8b",
        "released although it was used",
        copy(
            "leaseq_usagerecord",
            f"attempt_id = {attempt('settled')} AND unit = 'prompt_token'",
            id="90001",
            attempt_id=attempt("completed"),
            recorded_at=f"(SELECT ended_at FROM leaseq_attempt WHERE id = {attempt('completed')})",
            settled_by_id="NULL",
        ),
    ),
    corruption(
        "M9",
        "an open hold that nobody will look at",
        "UPDATE leaseq_job SET settle_at = NULL WHERE id = %(unpriced)s",
    ),
    corruption(
        "M9",
        "an open hold that nobody was told of",
        "UPDATE leaseq_finding SET closed_at = opened_at",
        "UPDATE leaseq_job SET ended_at = ended_at - interval '1 day' WHERE id = %(unpriced)s",
    ),
    corruption(
        "SPEC N4",
        "a running job without money",
        f"UPDATE leaseq_hold SET {CLOSED}, reason = 'never_sent' WHERE job_id = %(running)s",
    ),
)

CORRUPTIONS = (*LEASES, *JOBS, *ATTEMPTS, *MONEY)
