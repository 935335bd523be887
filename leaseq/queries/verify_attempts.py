"""Invariants of attempts and provider requests (PROMISES 3.3, 3.4; SPEC L3, L5, N1)."""

from leaseq.models import Attempt, Job, ProviderRequest
from leaseq.queries.invariants import Invariant, by_statement

UNCLOSED = """
SELECT 'job', j.id::text, concat('is ', j.state, ' with ', count(a.id), ' unclosed attempts')
FROM leaseq_job j
LEFT JOIN leaseq_attempt a ON a.job_id = j.id AND a.state IN ('open', 'outcome_unknown')
GROUP BY j.id
HAVING count(a.id) <> CASE WHEN j.state = ANY(%(terminal)s) THEN 0 ELSE 1 END
"""

NUMBERS = """
SELECT 'job', job_id::text, concat('attempt ', number, ' stands as number ', place)
FROM (SELECT job_id, number,
             row_number() OVER (PARTITION BY job_id ORDER BY number, opened_at) AS place
      FROM leaseq_attempt) AS placed
WHERE number <> place
UNION ALL
SELECT 'job', j.id::text,
  concat('says its current attempt is ', j.current_attempt_number, ', and its last is ',
         max(a.number))
FROM leaseq_job j JOIN leaseq_attempt a ON a.job_id = j.id
GROUP BY j.id HAVING max(a.number) <> j.current_attempt_number
"""

OPENED_ON_EVIDENCE = """
SELECT 'attempt', next.id::text,
  concat('opened ', next.opened_at, ' while attempt ', a.number, ' was ', a.state, ' until ',
         coalesce(a.ended_at::text, 'now'))
FROM leaseq_attempt next
JOIN leaseq_attempt a ON a.job_id = next.job_id AND a.number = next.number - 1
WHERE a.ended_at IS NULL OR a.ended_at > next.opened_at
UNION ALL
SELECT 'attempt', next.id::text,
  concat('opened ', next.opened_at, '; the request of attempt ', a.number, ' is ',
         coalesce(r.state, 'not recorded'), ' until ', coalesce(r.ended_at::text, 'now'))
FROM leaseq_attempt next
JOIN leaseq_attempt a ON a.job_id = next.job_id AND a.number = next.number - 1
LEFT JOIN leaseq_providerrequest r ON r.attempt_id = a.id
WHERE a.possibly_sent AND (r.ended_at IS NULL OR r.ended_at > next.opened_at)
"""

TIMES = """
SELECT 'attempt', id::text,
  concat('opened ', opened_at, ', reserved ', reserved_at, ', claimed ', claimed_at,
         ', accepted ', accepted_at, ', started ', started_at, ', progress ', progress_at,
         ', ended ', ended_at)
FROM leaseq_attempt
WHERE reserved_at < opened_at OR claimed_at < reserved_at OR accepted_at < claimed_at
   OR started_at < accepted_at OR progress_at < started_at
   OR ended_at < greatest(opened_at, reserved_at, claimed_at, accepted_at, started_at, progress_at)
   OR (claimed_at IS NOT NULL AND reserved_at IS NULL)
   OR (accepted_at IS NOT NULL AND claimed_at IS NULL)
   OR (started_at IS NOT NULL AND accepted_at IS NULL)
   OR (progress_at IS NOT NULL AND started_at IS NULL)
UNION ALL
SELECT 'provider request', id::text,
  concat('prepared ', prepared_at, ', accepted ', accepted_at, ', started ', started_at,
         ', ended ', ended_at)
FROM leaseq_providerrequest
WHERE accepted_at < prepared_at OR started_at < accepted_at
   OR ended_at < greatest(prepared_at, accepted_at, started_at)
"""

STATE_AND_TIMES = """
SELECT 'job', j.id::text,
  concat('is ', j.state, '; its attempt was reserved ', a.reserved_at, ', claimed ', a.claimed_at,
         ', accepted ', a.accepted_at, ', started ', a.started_at)
FROM leaseq_job j
JOIN leaseq_attempt a ON a.job_id = j.id AND a.number = j.current_attempt_number
WHERE j.state <> ALL(%(terminal)s)
  AND j.state <> CASE
    WHEN a.started_at IS NOT NULL THEN 'running'
    WHEN a.accepted_at IS NOT NULL THEN 'provider_accepted'
    WHEN a.claimed_at IS NOT NULL THEN 'dispatching'
    WHEN a.reserved_at IS NOT NULL AND j.state = 'reserved' THEN 'reserved'
    WHEN a.reserved_at IS NOT NULL THEN 'queued'
    ELSE 'admitted' END
UNION ALL
SELECT 'attempt', a.id::text,
  concat('started ', a.started_at, ', the event of it: ', coalesce(e.at::text, 'none'))
FROM leaseq_attempt a
LEFT JOIN leaseq_jobevent e ON e.attempt_id = a.id AND e.to_state = 'running'
  AND e.from_state <> 'running'
WHERE a.started_at IS DISTINCT FROM e.at
"""

SENT_AFTER_CLAIM = """
SELECT 'provider request', r.id::text,
  concat('prepared ', r.prepared_at, ', its attempt was claimed ',
         coalesce(a.claimed_at::text, 'never'))
FROM leaseq_providerrequest r JOIN leaseq_attempt a ON a.id = r.attempt_id
WHERE a.claimed_at IS NULL OR r.prepared_at < a.claimed_at
   OR NOT EXISTS (SELECT 1 FROM leaseq_jobevent e
                  WHERE e.attempt_id = a.id AND e.kind = 'intent_recorded'
                    AND e.at = r.prepared_at)
"""

POSSIBLY_SENT = """
SELECT 'attempt', a.id::text, concat('has request ', r.id, ' and is not marked as possibly sent')
FROM leaseq_providerrequest r JOIN leaseq_attempt a ON a.id = r.attempt_id
WHERE NOT a.possibly_sent
"""

UNKNOWN = """
SELECT 'attempt', a.id::text,
  concat('is ', a.state, ', unknown since ', a.unknown_since, ', ',
         CASE WHEN a.possibly_sent THEN 'possibly' ELSE 'never' END, ' sent')
FROM leaseq_attempt a
WHERE (a.state = 'outcome_unknown' AND (a.unknown_since IS NULL OR NOT a.possibly_sent))
   OR (a.state = 'open' AND a.unknown_since IS NOT NULL)
   OR a.unknown_since > a.ended_at
"""

COUNTED = """
SELECT 'job', j.id::text,
  concat('counts ', j.attempts_counted, ' attempts, and ', count(a.claimed_at),
         ' were granted capacity')
FROM leaseq_job j LEFT JOIN leaseq_attempt a ON a.job_id = j.id
GROUP BY j.id HAVING count(a.claimed_at) <> j.attempts_counted
"""

# The renewals of an attempt are booked when its leases end: at its close, or its doubt.
SPENT = """
SELECT 'job', j.id::text,
  concat('says ', j.reserved_time_used, ' reserved, its closed attempts ', spent.reserved)
FROM leaseq_job j JOIN (
  SELECT job_id, sum(coalesce(unknown_since, ended_at) - reserved_at)
    FILTER (WHERE ended_at IS NOT NULL AND reserved_at IS NOT NULL) AS reserved
  FROM leaseq_attempt GROUP BY job_id) spent ON spent.job_id = j.id
WHERE j.reserved_time_used <> coalesce(spent.reserved, interval '0')
UNION ALL
SELECT 'job', j.id::text,
  concat('says ', j.renewals_used, ' renewals, its attempts without leases ',
         coalesce(spent.renewals, 0))
FROM leaseq_job j LEFT JOIN (
  SELECT job_id, sum(renewals) AS renewals FROM (
    SELECT a.job_id, max(l.renewals_before + l.renewal_count) AS renewals
    FROM leaseq_attempt a JOIN leaseq_lease l ON l.attempt_id = a.id
    WHERE a.ended_at IS NOT NULL OR a.unknown_since IS NOT NULL GROUP BY a.id) AS of_attempt
  GROUP BY job_id) spent ON spent.job_id = j.id
WHERE j.renewals_used <> coalesce(spent.renewals, 0)
"""

REQUEST_KEYS = """
SELECT 'attempt', attempt_id::text, concat('has ', count(*), ' requests')
FROM leaseq_providerrequest GROUP BY attempt_id HAVING count(*) > 1
UNION ALL
SELECT 'key', idempotency_key::text, concat('is of ', count(*), ' requests')
FROM leaseq_providerrequest GROUP BY idempotency_key HAVING count(*) > 1
"""

ONE_AT_A_TIME = """
SELECT 'provider request', id::text,
  concat('prepared ', prepared_at, ', an earlier one of job ', job_id, ' lived until ',
         busy_until)
FROM (
  SELECT r.id, a.job_id, r.prepared_at, max(coalesce(r.ended_at, 'infinity'::timestamptz)) OVER (
    PARTITION BY a.job_id ORDER BY r.prepared_at
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until
  FROM leaseq_providerrequest r JOIN leaseq_attempt a ON a.id = r.attempt_id) AS of_job
WHERE busy_until > prepared_at
"""

INVARIANTS = (
    Invariant(
        id="J3a",
        sentence="A job has one unclosed attempt until its end, and none after.",
        subject=Job,
        find=by_statement(UNCLOSED),
    ),
    Invariant(
        id="J3b",
        sentence="The attempts of a job are numbered from 1 without a gap, the last is current.",
        subject=Attempt,
        find=by_statement(NUMBERS),
    ),
    Invariant(
        id="J3c",
        sentence="An attempt opens after the one before was closed, by evidence if it was sent.",
        subject=Attempt,
        find=by_statement(OPENED_ON_EVIDENCE),
    ),
    Invariant(
        id="J5a",
        sentence="Reserved, claimed, accepted, started and ended come in this order.",
        subject=Attempt,
        find=by_statement(TIMES),
    ),
    Invariant(
        id="J5b",
        sentence="A job's state is what the times of its attempt say; start has its own event.",
        subject=Job,
        find=by_statement(STATE_AND_TIMES),
    ),
    Invariant(
        id="J7",
        sentence="A request was recorded after the claim, with an event, before it was sent.",
        subject=ProviderRequest,
        find=by_statement(SENT_AFTER_CLAIM),
    ),
    Invariant(
        id="J8",
        sentence="An attempt with a provider request is marked as possibly sent.",
        subject=ProviderRequest,
        find=by_statement(POSSIBLY_SENT),
    ),
    Invariant(
        id="J9",
        sentence="An unknown outcome says since when, and only of a possibly sent attempt.",
        subject=Attempt,
        find=by_statement(UNKNOWN),
    ),
    Invariant(
        id="SPEC N1",
        sentence="A job counts the attempts that were granted capacity, and no others.",
        subject=Job,
        find=by_statement(COUNTED),
    ),
    Invariant(
        id="SPEC L3",
        sentence="Reserved time and renewals used are the sums over the closed attempts.",
        subject=Job,
        find=by_statement(SPENT),
    ),
    Invariant(
        id="V1",
        sentence="An attempt has at most one request, with a key of its own.",
        subject=ProviderRequest,
        find=by_statement(REQUEST_KEYS),
    ),
    Invariant(
        id="V2",
        sentence="A job has at most one request alive at a time.",
        subject=ProviderRequest,
        find=by_statement(ONE_AT_A_TIME),
    ),
)
