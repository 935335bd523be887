"""Waiting jobs worth a look: the oldest few of each account, policy and provider (SPEC A4).

The index is walked from head to head, so that the cost grows with the number of accounts that
wait and not with the number of their jobs, and a crowd whose pool is full hides nobody else.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from leaseq.db.transactions import connection

HEADS = """
WITH RECURSIVE heads AS (
  (SELECT priority, account_id, policy_id, provider FROM leaseq_job
   WHERE state = 'admitted' AND queue = %(queue)s
   ORDER BY priority DESC, account_id, policy_id, provider LIMIT 1)
  UNION ALL
  SELECT next.* FROM heads h CROSS JOIN LATERAL (
    SELECT priority, account_id, policy_id, provider FROM leaseq_job
    WHERE state = 'admitted' AND queue = %(queue)s AND priority <= h.priority
      AND (priority < h.priority
           OR (account_id, policy_id, provider) > (h.account_id, h.policy_id, h.provider))
    ORDER BY priority DESC, account_id, policy_id, provider LIMIT 1) next
)
SELECT j.id, j.account_id, j.priority, j.submitted_at
FROM heads h CROSS JOIN LATERAL (
  SELECT id, account_id, priority, submitted_at FROM leaseq_job
  WHERE state = 'admitted' AND queue = %(queue)s AND priority = h.priority
    AND account_id = h.account_id AND policy_id = h.policy_id AND provider = h.provider
    AND not_before <= %(now)s
    AND EXISTS (SELECT 1 FROM leaseq_servingpolicy p WHERE p.id = h.policy_id AND p.is_open)
  ORDER BY submitted_at, id LIMIT %(each)s) j
"""

ACTIVE = """
SELECT account_id, count(*) FROM leaseq_job
WHERE state IN ('reserved', 'queued', 'dispatching', 'provider_accepted', 'running')
  AND account_id = ANY(%s)
GROUP BY account_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that waits and is eligible, as read without a lock."""

    job_id: UUID
    account_id: int
    priority: int
    submitted_at: datetime


def waiting(*, queue: str, now: datetime, each: int) -> list[Candidate]:
    """Return the oldest `each` eligible jobs of every account, open policy and provider.

    A closed policy renews nothing, so that a reservation under it would only burn an attempt.
    """
    with connection().cursor() as cursor:
        cursor.execute(HEADS, {"queue": queue, "now": now, "each": each})
        return [
            Candidate(job_id=row[0], account_id=row[1], priority=row[2], submitted_at=row[3])
            for row in cursor.fetchall()
        ]


def active_by_account(account_ids: set[int]) -> dict[int, int]:
    """Count the jobs of each account that hold a reservation."""
    with connection().cursor() as cursor:
        cursor.execute(ACTIVE, [list(account_ids)])
        return dict(cursor.fetchall())
