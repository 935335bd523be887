"""Corruptions of accounts, holds, ledger and usage, see `planting`."""

from tests.verify.planting import CLOSED, attempt, copy, corruption

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
