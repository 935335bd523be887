"""The statements that renew thousands of leases: lock and read, then write (SPEC B8).

Between the two the clock is read and the rule decides each row. Jobs and attempts are locked FOR
SHARE, so that many renewals of one job do not wait for each other, and no verb changes a job
meanwhile. The attempt's own lock is needed too: a statement that waited reads again only the rows
that it locks, and would judge by a report of progress as old as its wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from leaseq.db.transactions import connection

_READ = """
SELECT l.id, l.attempt_id, l.resource_type, l.status, l.fence_epoch, l.fence, l.version,
       l.expires_at, l.created_at, l.first_reserved_at, l.renewal_count, l.renewals_before,
       l.renewal_key, l.renewed_at, l.worker_id,
       j.state AS job_state, j.queue, j.cancel_asked_at, j.waiting_since, j.queue_time_used,
       j.queue_age_max, j.first_reserved_at AS job_first_reserved_at, j.reserved_time_used,
       j.renewals_used,
       a.state AS attempt_state, a.reserved_at, a.accepted_at, a.started_at, a.progress_at,
       p.is_open, p.lease_ttl, p.renew_every, p.lease_life_max, p.reserved_time_max, p.renewals_max,
       p.run_time_max, p.provider_wait_max, p.stall_limit, p.stop_grace
FROM leaseq_lease l
JOIN leaseq_job j ON j.id = l.job_id
JOIN leaseq_attempt a ON a.id = l.attempt_id
JOIN leaseq_servingpolicy p ON p.id = j.policy_id
"""

_LOCK = "ORDER BY j.id, l.id FOR SHARE OF j, a FOR NO KEY UPDATE OF l"
# The control plane comes again soon, so it leaves what somebody is at work on.
_LOCK_FREE = "ORDER BY j.id, l.id FOR SHARE OF j, a SKIP LOCKED FOR NO KEY UPDATE OF l SKIP LOCKED"

READ_OF_ATTEMPTS = (
    _READ + "WHERE (l.attempt_id = ANY(%s) AND l.status = 'active') OR l.id = ANY(%s) " + _LOCK
)

# Only a hint of what is due: the rule decides by the clock that is read after the locks.
READ_DUE_OF_CONTROL_PLANE = (
    _READ
    + """WHERE l.id IN (
    SELECT d.id FROM leaseq_lease d JOIN leaseq_job dj ON dj.id = d.job_id
    JOIN leaseq_servingpolicy dp ON dp.id = dj.policy_id
    WHERE d.status = 'active' AND d.worker_id IS NULL
      AND d.expires_at - dp.lease_ttl + dp.renew_every <= clock_timestamp()
      AND d.expires_at > clock_timestamp()
    ORDER BY d.expires_at LIMIT %s)
"""
    + _LOCK_FREE
)

WRITE = """
UPDATE leaseq_lease l
SET expires_at = v.expires_at, version = l.version + 1, renewal_count = l.renewal_count + 1,
    renewed_at = %s, renewal_key = v.key
FROM unnest(%s::uuid[], %s::int[], %s::int[], %s::bigint[], %s::timestamptz[], %s::text[])
  AS v(id, version, epoch, fence, expires_at, key)
WHERE l.id = v.id AND l.version = v.version AND l.status = 'active'
  AND l.fence_epoch = v.epoch AND l.fence = v.fence
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One lease to be renewed, as read under its lock, and until when."""

    lease_id: UUID
    version: int
    epoch: int
    fence: int
    expires_at: datetime
    key: str | None


def lock_of_attempts(attempt_ids: Sequence[UUID], lease_ids: Sequence[UUID]) -> list[Any]:
    """Lock and return the live leases of these attempts, and the named ones live or not."""
    return _rows(READ_OF_ATTEMPTS, [list(attempt_ids), list(lease_ids)])


def lock_due_of_control_plane(limit: int) -> list[Any]:
    """Lock and return the control plane's own due leases, but those that are taken just now."""
    return _rows(READ_DUE_OF_CONTROL_PLANE, [limit])


def write(extensions: Sequence[Extension], *, now: datetime) -> int:
    """Renew these leases in one statement and return how many rows it changed."""
    with connection().cursor() as cursor:
        cursor.execute(
            WRITE,
            [
                now,
                [one.lease_id for one in extensions],
                [one.version for one in extensions],
                [one.epoch for one in extensions],
                [one.fence for one in extensions],
                [one.expires_at for one in extensions],
                [one.key for one in extensions],
            ],
        )
        changed: int = cursor.rowcount
        return changed


def _rows(statement: str, values: list[Any]) -> list[Any]:
    with connection().cursor() as cursor:
        cursor.execute(statement, values)
        columns = [column[0] for column in cursor.description]
        return [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in cursor]
