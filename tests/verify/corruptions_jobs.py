"""Corruptions of jobs and their events, see `planting`."""

from tests.verify.planting import LAST_EVENT, copy, corruption, lease, without

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
        without("leaseq_job", "job_reason_is_a_known_word"),
        "UPDATE leaseq_job SET reason = 'because' WHERE id = %(failed)s",
    ),
    corruption(
        "J10",
        "an attempt ended because",
        without("leaseq_attempt", "attempt_reason_is_a_known_word"),
        "UPDATE leaseq_attempt SET reason = 'because' WHERE job_id = %(failed)s",
    ),
    corruption(
        "J10",
        "a lease ended because",
        without("leaseq_lease", "lease_end_reason_is_a_known_word"),
        lease("failed").format("end_reason = 'because'"),
    ),
    corruption(
        "J10",
        "a hold closed because",
        without("leaseq_hold", "hold_reason_is_a_known_word"),
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
