"""Corruptions of attempts and provider requests, see `planting`."""

from tests.verify.planting import NEW_ID, NO_UNIQUE_REQUESTS, attempt, copy, corruption

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
