"""Invariants of money: accounts, holds, ledger and usage (PROMISES 3.6, SPEC F, N4)."""

from leaseq.models import Account, Hold, Job, LedgerEntry, UsageRecord
from leaseq.queries.invariants import Invariant, by_statement

ENTRIES = """
SELECT 'entry', e.id::text,
  concat(e.kind, ' of ', e.amount, ' ', e.currency, ' from ', e.source, ' to ', e.target,
         ' in an account of ', a.currency)
FROM leaseq_ledgerentry e JOIN leaseq_account a ON a.id = e.account_id
WHERE e.currency <> a.currency OR e.source = e.target OR e.amount <= 0
   OR (e.source, e.target) NOT IN (SELECT * FROM (VALUES
        ('available', 'held'), ('held', 'available'), ('held', 'settled'),
        ('settled', 'available'), ('available', 'settled')) AS known(f, t))
   OR (e.kind = 'hold' AND (e.source, e.target) <> ('available', 'held'))
   OR (e.kind = 'release' AND (e.source, e.target) <> ('held', 'available'))
   OR (e.kind = 'settle' AND (e.source, e.target) <> ('held', 'settled'))
   OR (e.kind = 'reverse' AND (e.source, e.target) <> ('settled', 'available'))
UNION ALL
SELECT 'entry', e.id::text,
  concat('is of account ', e.account_id, ' and job ', e.job_id, ', its hold of ', h.account_id,
         ' and ', h.job_id)
FROM leaseq_ledgerentry e JOIN leaseq_hold h ON h.id = e.hold_id
WHERE e.account_id <> h.account_id OR e.job_id IS DISTINCT FROM h.job_id
"""

# What was reversed may stand in the hold as still settled, or as released.
HOLDS = """
SELECT 'hold', h.id::text,
  concat('of ', h.amount, ' ', h.state, ': held ', h.held, ', settled ', h.settled, ', released ',
         h.released, '; by the ledger ', s.holding, ', ', s.settling, ', ', s.releasing,
         ', reversed ', s.reversing)
FROM leaseq_hold h JOIN LATERAL (
  SELECT coalesce(sum(amount) FILTER (WHERE kind = 'hold'), 0) AS holding,
         coalesce(sum(amount) FILTER (WHERE kind = 'settle'), 0) AS settling,
         coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0) AS releasing,
         coalesce(sum(amount) FILTER (WHERE kind = 'reverse'), 0) AS reversing
  FROM leaseq_ledgerentry WHERE hold_id = h.id) s ON true
WHERE h.amount <> h.held + h.settled + h.released
   OR least(h.amount, h.held, h.settled, h.released) < 0
   OR h.amount <> s.holding
   OR h.held <> s.holding - s.settling - s.releasing
   OR ((h.settled, h.released) <> (s.settling, s.releasing)
       AND (h.settled, h.released)
           <> (s.settling - s.reversing, s.releasing + s.reversing))
"""

ACCOUNTS = """
SELECT 'account', a.name::text,
  concat('holds ', a.held, ', its open holds ', h.held, ', its ledger ', b.held)
FROM leaseq_account a
JOIN LATERAL (SELECT coalesce(sum(held), 0) AS held
              FROM leaseq_hold WHERE account_id = a.id) h ON true
JOIN LATERAL (SELECT coalesce(sum(CASE WHEN target = 'held' THEN amount ELSE -amount END), 0)
                AS held
              FROM leaseq_ledgerentry
              WHERE account_id = a.id AND 'held' IN (source, target)) b ON true
WHERE a.held <> h.held OR a.held <> b.held
UNION ALL
SELECT 'account', a.name::text, concat('has settled ', a.settled, ', its ledger ', b.settled)
FROM leaseq_account a
JOIN LATERAL (SELECT coalesce(sum(CASE WHEN target = 'settled' THEN amount ELSE -amount END), 0)
                AS settled
              FROM leaseq_ledgerentry
              WHERE account_id = a.id AND 'settled' IN (source, target)) b ON true
WHERE a.settled <> b.settled
UNION ALL
SELECT 'account', name::text, concat('limit ', "limit", ', held ', held, ', settled ', settled)
FROM leaseq_account WHERE "limit" - held - settled < 0
"""

SETTLED_ONCE = """
SELECT 'hold', h.id::text,
  concat(count(e.id), ' settlements of ', coalesce(sum(e.amount), 0), ', the hold was ', h.amount)
FROM leaseq_hold h JOIN leaseq_ledgerentry e ON e.hold_id = h.id AND e.kind = 'settle'
GROUP BY h.id HAVING count(e.id) > 1 OR sum(e.amount) > h.amount
"""

RELEASED_BY_EVIDENCE = """
SELECT 'hold', h.id::text, concat('was ', h.state, ' for ', h.reason)
FROM leaseq_hold h
WHERE h.state IN ('released', 'expired')
  AND (h.reason NOT IN ('never_sent', 'no_usage', 'provider_rejected', 'hold_expired',
                        'revoked_by_operator')
       OR (h.reason = 'hold_expired' AND h.closed_at < h.expires_at))
UNION ALL
SELECT 'hold', h.id::text,
  concat('was ', h.state, ' for ', h.reason, '; attempt ', a.number, ' was possibly sent, ',
         a.state)
FROM leaseq_hold h JOIN leaseq_attempt a ON a.job_id = h.job_id
LEFT JOIN leaseq_providerrequest r ON r.attempt_id = a.id
WHERE h.state IN ('released', 'expired') AND a.possibly_sent AND a.opened_at <= h.closed_at
  AND (h.reason IN ('never_sent', 'hold_expired') OR a.ended_at IS NULL
       OR a.ended_at > h.closed_at OR r.ended_at IS NULL OR r.ended_at > h.closed_at)
"""

APART_FROM_LEASES = """
SELECT 'entry', e.id::text,
  concat(e.kind, ' at ', e.at, ', the very moment of a change of lease ', l.id)
FROM leaseq_ledgerentry e
JOIN leaseq_lease l ON l.job_id = e.job_id
  AND (e.at = l.created_at OR e.at = l.renewed_at
       OR (e.at = l.ended_at AND l.status <> 'expired'))
"""

ENTRIES_AND_EVENTS = """
SELECT 'entry', e.id::text, concat(e.kind, ' of ', e.amount, ' at ', e.at, ' has no event')
FROM leaseq_ledgerentry e
WHERE e.kind IN ('hold', 'settle', 'release')
  AND NOT EXISTS (SELECT 1 FROM leaseq_jobevent v
                  WHERE v.job_id = e.job_id AND v.at = e.at
                    AND (v.kind ~ '^hold_' OR e.kind = 'hold'))
UNION ALL
SELECT 'job', v.job_id::text,
  concat('event ', v.version, ' (', v.kind, ') speaks of ', v.data ->> 'settled', ' settled and ',
         v.data ->> 'released', ' released; the ledger moved ', s.settled, ' and ', s.released)
FROM leaseq_jobevent v JOIN LATERAL (
  SELECT coalesce(sum(amount) FILTER (WHERE kind = 'settle'), 0) AS settled,
         coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0) AS released
  FROM leaseq_ledgerentry
  WHERE job_id = v.job_id AND at = v.at AND hold_id::text = v.data ->> 'hold') s ON true
WHERE v.kind IN ('hold_settled', 'hold_released', 'hold_expired')
  AND ((v.data ->> 'settled')::numeric <> s.settled
       OR (v.data ->> 'released')::numeric <> s.released)
"""

# Half a unit of the ninth place is what rounding may move.
PRICED = """
SELECT 'usage', u.id::text,
  concat(u.quantity, ' ', u.unit, ' at ', u.unit_price, ' ', u.currency, ' cost ', u.cost)
FROM leaseq_usagerecord u
JOIN leaseq_attempt a ON a.id = u.attempt_id JOIN leaseq_job j ON j.id = a.job_id
JOIN leaseq_account c ON c.id = j.account_id
WHERE abs(u.cost - u.quantity * u.unit_price) > 0.0000000005 OR u.currency <> c.currency
   OR (u.cost IS NULL) <> (u.unit_price IS NULL)
UNION ALL
SELECT 'usage', u.id::text, 'was settled without a price'
FROM leaseq_usagerecord u WHERE u.settled_by_id IS NOT NULL AND u.cost IS NULL
"""

SETTLED_IS_USED = """
SELECT 'hold', h.id::text,
  concat('of ', h.amount, ' settled ', h.settled, ', the usage cost ', coalesce(used.cost, 0))
FROM leaseq_hold h LEFT JOIN LATERAL (
  SELECT sum(u.cost) AS cost
  FROM leaseq_usagerecord u JOIN leaseq_attempt a ON a.id = u.attempt_id
  LEFT JOIN leaseq_ledgerentry e ON e.id = u.settled_by_id
  WHERE a.job_id = h.job_id
    AND (e.hold_id = h.id OR (e.id IS NULL AND u.recorded_at >= h.created_at
                              AND u.recorded_at <= h.closed_at))) used ON true
WHERE h.state IN ('settled', 'released', 'expired')
  AND h.settled <> least(h.amount, coalesce(used.cost, 0))
"""

CLOSED_AFTER_THE_END = """
SELECT 'hold', h.id::text,
  concat('is still held; its job ', j.id, ' is ', j.state, ' since ', j.ended_at)
FROM leaseq_hold h JOIN leaseq_job j ON j.id = h.job_id
WHERE h.state = 'held' AND j.state = ANY(%(terminal)s)
  AND (j.settle_at IS NULL
       OR (j.ended_at < %(now)s - %(settle_within)s AND NOT EXISTS (
             SELECT 1 FROM leaseq_finding f WHERE f.job_id = j.id AND f.closed_at IS NULL)))
UNION ALL
SELECT 'job', j.id::text,
  concat('was settled ', j.settled_at, ' and is to be looked at ', j.settle_at)
FROM leaseq_job j
WHERE j.state = ANY(%(terminal)s) AND (j.settle_at IS NULL) <> (j.settled_at IS NOT NULL)
"""

HELD_UNTIL_THE_END = """
SELECT 'job', j.id::text, concat('is ', j.state, ' and has ', count(h.id), ' open holds')
FROM leaseq_job j LEFT JOIN leaseq_hold h ON h.job_id = j.id AND h.state = 'held'
WHERE j.state <> ALL(%(terminal)s)
GROUP BY j.id HAVING count(h.id) <> 1
"""

INVARIANTS = (
    Invariant(
        id="M1",
        sentence="Every entry moves money between two books of one account, in its currency.",
        subject=LedgerEntry,
        find=by_statement(ENTRIES),
    ),
    Invariant(
        id="M2",
        sentence="A hold is what is held, settled and released, each as its entries sum up.",
        subject=Hold,
        find=by_statement(HOLDS),
    ),
    Invariant(
        id="M3",
        sentence="An account agrees with its holds and ledger, and is within its limit.",
        subject=Account,
        find=by_statement(ACCOUNTS),
    ),
    Invariant(
        id="M4",
        sentence="A hold is settled at most once, and never above its amount.",
        subject=Hold,
        find=by_statement(SETTLED_ONCE),
    ),
    Invariant(
        id="M5",
        sentence="Money goes back on evidence alone, never for the end of a lease.",
        subject=Hold,
        find=by_statement(RELEASED_BY_EVIDENCE),
    ),
    Invariant(
        id="M6",
        sentence="No money moves in the transaction that changes a lease.",
        subject=LedgerEntry,
        find=by_statement(APART_FROM_LEASES),
    ),
    Invariant(
        id="M7",
        sentence="Every entry has its event, and every event of money its entries.",
        subject=LedgerEntry,
        find=by_statement(ENTRIES_AND_EVENTS),
    ),
    Invariant(
        id="M8a",
        sentence="Usage costs its quantity times its price; what has no price is not settled.",
        subject=UsageRecord,
        find=by_statement(PRICED),
    ),
    Invariant(
        id="M8b",
        sentence="What was settled is the priced usage, up to the hold.",
        subject=Hold,
        find=by_statement(SETTLED_IS_USED),
    ),
    Invariant(
        id="M9",
        sentence="The hold of an ended job is closed in time, or a finding says why not.",
        subject=Job,
        find=by_statement(CLOSED_AFTER_THE_END),
    ),
    Invariant(
        id="SPEC N4",
        sentence="A job that has not ended has its one open hold.",
        subject=Job,
        find=by_statement(HELD_UNTIL_THE_END),
    ),
)
