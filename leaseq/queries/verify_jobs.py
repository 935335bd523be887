"""Invariants of jobs and their events (PROMISES 3.3, 3.7, 3.8; SPEC A, M7)."""

from leaseq.models import Job, JobEvent
from leaseq.queries.invariants import Invariant, by_statement

CHAIN = """
SELECT 'job', job_id::text, concat('event ', version, ' (', kind, ') stands as number ', place)
FROM (SELECT job_id, version, kind,
             row_number() OVER (PARTITION BY job_id ORDER BY version) AS place
      FROM leaseq_jobevent) AS placed
WHERE version <> place
"""

MOVES = """
SELECT 'job', job_id::text,
  concat('event ', version, ' (', kind, ') goes from ', coalesce(from_state, 'nothing'), ' to ',
         to_state, ' after ', coalesce(before, 'nothing'))
FROM (SELECT *, lag(to_state) OVER (PARTITION BY job_id ORDER BY version) AS before
      FROM leaseq_jobevent) AS event
WHERE from_state IS DISTINCT FROM before
   OR (before IS NOT NULL AND from_state <> to_state AND NOT EXISTS (
         SELECT 1 FROM unnest(%(moves_from)s::text[], %(moves_to)s::text[]) AS legal(f, t)
         WHERE legal.f = from_state AND legal.t = to_state))
"""

LAST_EVENT = """
SELECT 'job', j.id::text,
  concat('is ', j.state, ' at version ', j.version, ' since ', j.changed_at, '; its last event: ',
         coalesce(e.to_state, 'none'), ' at version ', e.version, ' at ', e.at)
FROM leaseq_job j LEFT JOIN LATERAL (
  SELECT version, to_state, at FROM leaseq_jobevent
  WHERE job_id = j.id ORDER BY version DESC LIMIT 1) e ON true
WHERE (j.version, j.state, j.changed_at) IS DISTINCT FROM (e.version, e.to_state, e.at)
"""

AFTER_THE_END = """
SELECT 'job', job_id::text,
  concat('event ', version, ' (', kind, ') came after the job was ', from_state)
FROM leaseq_jobevent
WHERE from_state = ANY(%(terminal)s)
  AND NOT (from_state IN ('failed', 'expired') AND to_state = 'admitted')
  AND (from_state <> to_state
       OR kind !~ '^(hold|usage|money|callback|finding|payload)_')
UNION ALL
SELECT 'job', j.id::text, concat('ended ', j.ended_at, '; the event of its end is of ', e.at)
FROM leaseq_job j JOIN LATERAL (
  SELECT at FROM leaseq_jobevent
  WHERE job_id = j.id AND to_state = j.state AND from_state <> to_state
  ORDER BY version DESC LIMIT 1) e ON true
WHERE j.state = ANY(%(terminal)s) AND j.ended_at <> e.at
"""

LEGAL_END = """
SELECT 'job', j.id::text, concat('is ', j.state, ', its last attempt ', a.state)
FROM leaseq_job j
JOIN leaseq_attempt a ON a.job_id = j.id AND a.number = j.current_attempt_number
WHERE (j.state = 'completed') <> (a.state = 'completed')
   OR (j.state = 'cancelled' AND a.state NOT IN ('cancelled', 'completed_after_cancel', 'lost'))
"""

CONSTANTS = """
SELECT 'job', j.id::text,
  concat('submitted ', j.submitted_at, ', admitted ', e.at, ', attempt 1 opened ', a.opened_at)
FROM leaseq_job j
JOIN leaseq_jobevent e ON e.job_id = j.id AND e.version = 1
JOIN leaseq_attempt a ON a.job_id = j.id AND a.number = 1
WHERE j.submitted_at <> e.at OR j.submitted_at <> a.opened_at
UNION ALL
SELECT 'job', j.id::text,
  concat('first reserved ', coalesce(j.first_reserved_at::text, 'never'),
         ', its first reservation was ', coalesce(e.at::text, 'never'))
FROM leaseq_job j LEFT JOIN LATERAL (
  SELECT at FROM leaseq_jobevent WHERE job_id = j.id AND to_state = 'reserved'
  ORDER BY version LIMIT 1) e ON true
WHERE j.first_reserved_at IS DISTINCT FROM e.at
UNION ALL
SELECT 'job', id::text,
  concat('waits since ', waiting_since, ' until ', queue_deadline_at, ', with ',
         queue_age_max - queue_time_used, ' left of its queue age')
FROM leaseq_job
WHERE waiting_since IS NOT NULL
  AND queue_deadline_at <> waiting_since + (queue_age_max - queue_time_used)
"""

EVENT_TIMES = """
SELECT 'job', job_id::text,
  concat('event ', version, ' (', kind, ') at ', at, ' follows one at ', before)
FROM (SELECT job_id, version, kind, at,
             lag(at) OVER (PARTITION BY job_id ORDER BY version) AS before
      FROM leaseq_jobevent) AS event
WHERE at < before
"""

REASONS = """
SELECT 'job', id::text, concat('ended for ', coalesce(reason, 'no reason')) FROM leaseq_job
WHERE (state = ANY(%(terminal)s)) <> (reason IS NOT NULL) OR reason <> ALL(%(reasons)s)
UNION ALL
SELECT 'attempt', id::text, concat('ended for ', coalesce(reason, 'no reason')) FROM leaseq_attempt
WHERE (ended_at IS NULL) <> (reason IS NULL) OR reason <> ALL(%(reasons)s)
UNION ALL
SELECT 'lease', id::text, concat('ended for ', coalesce(end_reason, 'no reason')) FROM leaseq_lease
WHERE (ended_at IS NULL) <> (end_reason IS NULL) OR end_reason <> ALL(%(reasons)s)
UNION ALL
SELECT 'hold', id::text, concat('closed for ', coalesce(reason, 'no reason')) FROM leaseq_hold
WHERE (state = 'held') <> (reason IS NULL) OR reason <> ALL(%(reasons)s)
"""

ACTORS = """
SELECT 'job', job_id::text, concat('event ', version, ' (', kind, ') names no actor')
FROM leaseq_jobevent WHERE btrim(actor) = ''
"""

ADMISSION = """
SELECT 'job', j.id::text, 'has no event 1 that admitted it'
FROM leaseq_job j
WHERE NOT EXISTS (SELECT 1 FROM leaseq_jobevent e
                  WHERE e.job_id = j.id AND e.version = 1 AND e.kind = 'admitted'
                    AND e.to_state = 'admitted')
UNION ALL
SELECT 'job', j.id::text, 'has no first attempt'
FROM leaseq_job j
WHERE NOT EXISTS (SELECT 1 FROM leaseq_attempt a WHERE a.job_id = j.id AND a.number = 1)
UNION ALL
SELECT 'job', j.id::text, 'has no hold of its admission'
FROM leaseq_job j
WHERE NOT EXISTS (SELECT 1 FROM leaseq_hold h
                  WHERE h.job_id = j.id AND h.created_at = j.submitted_at
                    AND h.amount = j.cost_ceiling AND h.account_id = j.account_id)
"""

OPERATORS = """
SELECT 'job', job_id::text, concat('event ', version, ' (', kind, ') of ', actor, ' says not why')
FROM leaseq_jobevent
WHERE btrim(reason) = ''
  AND (kind = 'cancel_asked' OR (from_state IN ('failed', 'expired') AND to_state = 'admitted'))
"""

CALLER_KEYS = """
SELECT 'account', account_id::text,
  concat(count(*), ' jobs have the idempotency key ', idempotency_key)
FROM leaseq_job WHERE idempotency_key IS NOT NULL
GROUP BY account_id, idempotency_key HAVING count(*) > 1
"""

INVARIANTS = (
    Invariant(
        id="J1a",
        sentence="The events of a job are numbered from 1 without a gap.",
        subject=JobEvent,
        find=by_statement(CHAIN),
    ),
    Invariant(
        id="J1b",
        sentence="Each event begins where the one before ended, and moves only along the table.",
        subject=JobEvent,
        find=by_statement(MOVES),
    ),
    Invariant(
        id="J1c",
        sentence="A job has the state, version and time of its last event.",
        subject=Job,
        find=by_statement(LAST_EVENT),
    ),
    Invariant(
        id="J2a",
        sentence="After its end a job has only events of money, or a re-admission.",
        subject=JobEvent,
        find=by_statement(AFTER_THE_END),
    ),
    Invariant(
        id="J2b",
        sentence="A job completed exactly when its last attempt did.",
        subject=Job,
        find=by_statement(LEGAL_END),
    ),
    Invariant(
        id="J4",
        sentence="Submission, first reservation and queue deadline are those first recorded.",
        subject=Job,
        find=by_statement(CONSTANTS),
    ),
    Invariant(
        id="J10",
        sentence="What has ended names its reason, from the closed list.",
        subject=Job,
        find=by_statement(REASONS),
    ),
    Invariant(
        id="L7",
        sentence="The times of a job's events never go back.",
        subject=JobEvent,
        find=by_statement(EVENT_TIMES),
    ),
    Invariant(
        id="A1",
        sentence="Every event names its actor.",
        subject=JobEvent,
        find=by_statement(ACTORS),
    ),
    Invariant(
        id="A2",
        sentence="A cancellation and a re-admission by a person say why.",
        subject=JobEvent,
        find=by_statement(OPERATORS),
    ),
    Invariant(
        id="P15",
        sentence="A job was admitted with its first attempt and its hold, together.",
        subject=Job,
        find=by_statement(ADMISSION),
    ),
    Invariant(
        id="Q2",
        sentence="An idempotency key of an account names one job.",
        subject=Job,
        find=by_statement(CALLER_KEYS),
    ),
)
