"""Corruptions of leases, slots and permits, see `planting`."""

from tests.verify.planting import REVIVED, attempt, copy, corruption, lease

LEASES = (
    corruption(
        "L1",
        "granted before the last one ended",
        lease("running").format("created_at = created_at - interval '1 day'"),
    ),
    corruption(
        "SPEC B9",
        "a running attempt whose slot's lease was ended",
        lease("running").format(
            "status = 'released', ended_at = expires_at, end_reason = 'completed'"
        ),
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
