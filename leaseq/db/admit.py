"""Admission in two statements: who and what is asked of, then job, attempt, hold and event."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from leaseq.db.transactions import connection
from leaseq.vocabulary import NoPermit


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """An account as read just now; the guarded UPDATE decides again."""

    id: int
    is_open: bool
    currency: str
    limit: Decimal
    held: Decimal
    settled: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """What admission needs of a policy."""

    id: int
    is_open: bool
    queue_age_max: timedelta
    hold_ttl: timedelta
    cost_ceiling: Decimal | None
    when_no_permit: NoPermit


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """The job that an idempotency key already names."""

    id: UUID
    task: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """The authority's time, and what the names stand for: None where unknown."""

    now: datetime
    account: AccountFacts | None
    policy: PolicyFacts | None
    known: KnownJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether the money was there, and whether the job is new."""

    paid: bool
    stored: bool


READ = """
SELECT clock_timestamp(),
       a.id, a.is_open, a.currency, a."limit", a.held, a.settled,
       p.id, p.is_open, p.queue_age_max, p.hold_ttl, p.cost_ceiling, p.when_no_permit,
       j.id, j.task, j.payload_digest
FROM (SELECT 1) AS one
LEFT JOIN leaseq_account a ON a.name = %s
LEFT JOIN leaseq_servingpolicy p ON p.name = %s
LEFT JOIN leaseq_job j ON j.account_id = a.id AND j.idempotency_key = %s
"""

# The account's row is taken before the key, in every admission, so that two admissions with one
# key wait for each other in one order.
STORE = """
WITH paid AS (
  UPDATE leaseq_account SET held = held + %(amount)s
  WHERE id = %(account)s AND is_open AND "limit" - held - settled >= %(amount)s
  RETURNING id, currency
), job AS (
  INSERT INTO leaseq_job (
    id, account_id, policy_id, task, queue, provider, payload, payload_digest, idempotency_key,
    priority, state, dead_letter, version, current_attempt_number, submitted_at, changed_at,
    not_before, waiting_since, queue_deadline_at, queue_time_used, queue_age_max,
    reserved_time_used, renewals_used, attempts_counted, cost_ceiling)
  SELECT %(job)s, paid.id, %(policy)s, %(task)s, %(queue)s, %(provider)s, %(payload)s::jsonb,
    %(digest)s, %(key)s, %(priority)s, 'admitted', false, 1, 1, %(now)s, %(now)s, %(not_before)s,
    %(not_before)s, %(queue_deadline)s, interval '0', %(queue_age_max)s, interval '0',
    0, 0, %(amount)s
  FROM paid
  ON CONFLICT (account_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
  RETURNING id
), attempt AS (
  INSERT INTO leaseq_attempt (id, job_id, number, state, possibly_sent, opened_at, progress, error)
  SELECT %(attempt)s, job.id, 1, 'open', false, %(now)s, '{}', '' FROM job
  RETURNING id
), hold AS (
  INSERT INTO leaseq_hold (
    id, account_id, job_id, state, amount, held, settled, released, created_at, expires_at)
  SELECT %(hold)s, paid.id, job.id, 'held', %(amount)s, %(amount)s, 0, 0, %(now)s,
    %(hold_expires)s
  FROM job, paid
  RETURNING id
), entry AS (
  INSERT INTO leaseq_ledgerentry (
    key, account_id, hold_id, job_id, kind, source, target, amount, currency, actor, reason, at)
  SELECT 'hold:' || hold.id, paid.id, hold.id, job.id, 'hold', 'available', 'held', %(amount)s,
    paid.currency, %(actor)s, 'admission', %(now)s
  FROM hold, job, paid WHERE %(amount)s > 0
), event AS (
  INSERT INTO leaseq_jobevent (
    job_id, version, kind, from_state, to_state, attempt_id, actor, reason, at, data)
  SELECT job.id, 1, 'admitted', NULL, 'admitted', attempt.id, %(actor)s, '', %(now)s,
    jsonb_build_object('hold', %(hold)s::text, 'amount', %(amount)s::text)
  FROM job, attempt
)
SELECT EXISTS (SELECT 1 FROM paid), EXISTS (SELECT 1 FROM job)
"""


def read_premises(*, account: str, policy: str, key: str | None) -> Premises:
    """Return the authority's time, the account and policy of these names, the key's job."""
    with connection().cursor() as cursor:
        cursor.execute(READ, [account, policy, key])
        row = cursor.fetchone()
    assert row is not None
    found = AccountFacts(
        id=row[1], is_open=row[2], currency=row[3], limit=row[4], held=row[5], settled=row[6]
    )
    asked = PolicyFacts(
        id=row[7],
        is_open=row[8],
        queue_age_max=row[9],
        hold_ttl=row[10],
        cost_ceiling=row[11],
        when_no_permit=row[12],
    )
    return Premises(
        now=row[0],
        account=found if row[1] is not None else None,
        policy=asked if row[7] is not None else None,
        known=KnownJob(id=row[13], task=row[14], digest=row[15]) if row[13] else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """Every value of an admission, as the statement stores it."""

    job: UUID
    attempt: UUID
    hold: UUID
    account: int
    policy: int
    task: str
    queue: str
    provider: str
    payload: str
    digest: str
    key: str | None
    priority: int
    amount: Decimal
    now: datetime
    not_before: datetime
    queue_deadline: datetime
    queue_age_max: timedelta
    hold_expires: datetime
    actor: str


def store(new: NewJob) -> Outcome:
    """Store a job, its first attempt and its hold, if the money is there and the key is new.

    Call it inside a transaction and roll back unless both are true: money taken for a key that
    is not new must go back.
    """
    values: dict[str, Any] = {name: getattr(new, name) for name in NewJob.__slots__}
    with connection().cursor() as cursor:
        cursor.execute(STORE, values)
        row = cursor.fetchone()
    assert row is not None
    return Outcome(paid=row[0], stored=row[1])
