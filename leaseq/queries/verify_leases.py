"""Invariants of leases, slots and permits (PROMISES 3.2, SPEC B, L1)."""

from leaseq.models import Attempt, Lease, OutboxMessage, PermitPool, ProviderRequest, Slot
from leaseq.queries.invariants import Invariant, by_statement

OVERLAP = """
SELECT 'lease', id::text,
  concat('slot ', slot_id, ': granted ', created_at, ', an earlier lease until ', taken_until)
FROM (
  SELECT id, slot_id, created_at, max(coalesce(ended_at, expires_at)) OVER (
    PARTITION BY slot_id ORDER BY created_at, fence_epoch, fence
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken_until
  FROM leaseq_lease WHERE slot_id IS NOT NULL) AS of_slot
WHERE taken_until > created_at
"""

ONE_LIVE = """
SELECT 'slot', slot_id::text, concat(count(*), ' live leases')
FROM leaseq_lease WHERE status = 'active' AND slot_id IS NOT NULL
GROUP BY slot_id HAVING count(*) > 1
"""

FENCES = """
SELECT 'lease', id::text,
  concat('slot ', slot_id, ': fence ', fence_epoch, '.', fence, ' after ', epoch_before, '.',
         fence_before)
FROM (
  SELECT id, slot_id, fence_epoch, fence, lag(fence_epoch) OVER one AS epoch_before,
    lag(fence) OVER one AS fence_before
  FROM leaseq_lease WHERE slot_id IS NOT NULL
  WINDOW one AS (PARTITION BY slot_id
                 ORDER BY created_at, coalesce(ended_at, 'infinity'::timestamptz))) AS of_slot
WHERE (fence_epoch, fence) <= (epoch_before, fence_before)
UNION ALL
SELECT 'lease', heir.id::text,
  concat('fence ', heir.fence_epoch, '.', heir.fence, ' after its predecessor''s ',
         old.fence_epoch, '.', old.fence)
FROM leaseq_lease heir JOIN leaseq_lease old ON old.id = heir.predecessor_id
WHERE (heir.fence_epoch, heir.fence) <= (old.fence_epoch, old.fence)
UNION ALL
SELECT 'fence', concat(fence_epoch, '.', fence), concat('given to ', count(*), ' leases')
FROM leaseq_lease GROUP BY fence_epoch, fence HAVING count(*) > 1
"""

WITHOUT_A_LEASE = """
SELECT 'attempt', a.id::text, concat('claimed ', a.claimed_at, ' and open, without a slot''s lease')
FROM leaseq_attempt a
WHERE a.state = 'open' AND a.claimed_at IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM leaseq_lease l
  WHERE l.attempt_id = a.id AND l.status = 'active' AND l.slot_id IS NOT NULL)
"""

SENT_UNDER_A_LEASE = """
SELECT 'provider request', r.id::text,
  concat('prepared ', r.prepared_at, ' with fence ', r.fence_epoch, '.', r.fence,
         ', under which no lease of it lived')
FROM leaseq_providerrequest r
WHERE NOT EXISTS (
  SELECT 1 FROM leaseq_lease l
  WHERE l.attempt_id = r.attempt_id AND (l.fence_epoch, l.fence) = (r.fence_epoch, r.fence)
    AND l.created_at <= r.prepared_at AND r.prepared_at <= coalesce(l.ended_at, l.expires_at))
"""

# An explicit re-admission counts lifetime and renewals anew, so it is left to the rules.
BOUNDS = """
WITH renewed_for_life AS (
  SELECT l.*, j.first_reserved_at AS job_reserved_at, j.renewals_used, p.lease_ttl,
    p.lease_life_max, p.renewals_max,
    CASE WHEN l.status = 'active' THEN j.renewals_used ELSE 0 END AS used_before
  FROM leaseq_lease l
  JOIN leaseq_job j ON j.id = l.job_id
  JOIN leaseq_servingpolicy p ON p.id = j.policy_id
  WHERE (l.status = 'active' OR %(ended_too)s)
    AND NOT EXISTS (SELECT 1 FROM leaseq_jobevent e
                    WHERE e.job_id = j.id AND e.to_state = 'admitted'
                      AND e.from_state IN ('failed', 'expired'))
)
SELECT 'lease', id::text,
  concat('expires ', expires_at, ', more than a ttl after ', coalesce(renewed_at, created_at))
FROM renewed_for_life WHERE expires_at > coalesce(renewed_at, created_at) + lease_ttl
UNION ALL
SELECT 'lease', id::text,
  concat('expires ', expires_at, ', past the reservation lifetime since ',
         least(job_reserved_at, first_reserved_at))
FROM renewed_for_life
WHERE expires_at > least(job_reserved_at, first_reserved_at) + lease_life_max
UNION ALL
SELECT 'lease', id::text,
  concat('renewed ', used_before + renewals_before + renewal_count,
         ' times with its forerunners, at most ', renewals_max)
FROM renewed_for_life WHERE used_before + renewals_before + renewal_count > renewals_max
"""

RENEWAL_PURITY = """
SELECT 'lease', id::text,
  concat('version ', version, ' after ', renewal_count, ' renewals, ', status)
FROM leaseq_lease
WHERE version <> 1 + renewal_count + CASE WHEN status = 'active' THEN 0 ELSE 1 END
UNION ALL
SELECT 'lease', id::text,
  concat('renewed ', renewal_count, ' times, last ', renewed_at, ', granted ', created_at)
FROM leaseq_lease
WHERE (renewed_at IS NULL) <> (renewal_count = 0) OR renewed_at < created_at
  OR first_reserved_at > created_at
"""

TRANSFERS = """
SELECT 'lease', l.id::text, 'was transferred, and no lease names it as its predecessor'
FROM leaseq_lease l
WHERE l.status = 'transferred'
  AND NOT EXISTS (SELECT 1 FROM leaseq_lease heir WHERE heir.predecessor_id = l.id)
UNION ALL
SELECT 'lease', heir.id::text,
  concat('follows ', old.id, ', which is ', old.status, ' or is of another attempt, unit or time')
FROM leaseq_lease heir JOIN leaseq_lease old ON old.id = heir.predecessor_id
WHERE old.status <> 'transferred' OR heir.attempt_id <> old.attempt_id
  OR heir.created_at <> old.ended_at
  OR (heir.slot_id, heir.pool_id) IS DISTINCT FROM (old.slot_id, old.pool_id)
  OR heir.first_reserved_at <> old.first_reserved_at
  OR heir.renewals_before <> old.renewals_before + old.renewal_count
UNION ALL
SELECT 'event', e.id::text, concat(e.kind, ' of lease ', l.id, ' after its end ', l.ended_at)
FROM leaseq_jobevent e JOIN leaseq_lease l ON l.id = e.lease_id
WHERE e.kind IN ('claimed', 'renewed', 'transferred') AND l.ended_at < e.at
"""

OUTLIVES_ATTEMPT = """
SELECT 'lease', l.id::text,
  concat('attempt ', a.id, ' is ', a.state, ' since ', a.ended_at, ', the lease ', l.status, ' ',
         l.ended_at)
FROM leaseq_lease l JOIN leaseq_attempt a ON a.id = l.attempt_id
WHERE a.ended_at IS NOT NULL AND (l.status = 'active' OR l.ended_at > a.ended_at)
UNION ALL
SELECT 'lease', l.id::text, concat('is of job ', l.job_id, ', its attempt of job ', a.job_id)
FROM leaseq_lease l JOIN leaseq_attempt a ON a.id = l.attempt_id
WHERE l.job_id <> a.job_id
"""

OF_A_TERMINAL_JOB = """
SELECT 'lease', l.id::text, concat('job ', j.id, ' is ', j.state)
FROM leaseq_lease l JOIN leaseq_job j ON j.id = l.job_id
WHERE l.status = 'active' AND j.state = ANY(%(terminal)s)
"""

PERMITS = """
SELECT 'pool', concat(p.kind, ':', p.key), concat(count(*), ' live permits, limit ', p."limit")
FROM leaseq_lease l JOIN leaseq_permitpool p ON p.id = l.pool_id
WHERE l.status = 'active' AND l.expires_at > %(now)s
GROUP BY p.id HAVING count(*) > p."limit"
"""

OWNER = """
SELECT 'lease', l.id::text,
  concat('owned by worker ', l.worker_id, ', the attempt by ', a.worker_id)
FROM leaseq_lease l JOIN leaseq_attempt a ON a.id = l.attempt_id
WHERE l.worker_id IS NOT NULL AND l.worker_id IS DISTINCT FROM a.worker_id
"""

OFFERS = """
SELECT 'slot', s.id::text, concat('is offered by worker ', w.id, ', which is ', w.state)
FROM leaseq_slot s JOIN leaseq_workernode w ON w.id = s.worker_id
WHERE w.state NOT IN ('live', 'draining')
"""

DOORBELLS = """
SELECT 'attempt', a.id::text,
  concat('has a message to send and is ', a.state, ', its job ', j.state)
FROM leaseq_outboxmessage m
JOIN leaseq_attempt a ON a.id = m.attempt_id JOIN leaseq_job j ON j.id = a.job_id
WHERE a.state <> 'open' OR j.state <> 'queued' OR a.number <> j.current_attempt_number
UNION ALL
SELECT 'job', j.id::text, 'is queued, and nothing would ring for it again'
FROM leaseq_job j
WHERE j.state = 'queued' AND NOT EXISTS (
  SELECT 1 FROM leaseq_outboxmessage m JOIN leaseq_attempt a ON a.id = m.attempt_id
  WHERE a.job_id = j.id AND a.number = j.current_attempt_number)
"""

INVARIANTS = (
    Invariant(
        id="L1",
        sentence="Leases of one slot never overlap, in history too.",
        subject=Lease,
        find=by_statement(OVERLAP),
    ),
    Invariant(
        id="P1",
        sentence="A slot has at most one live lease.",
        subject=Lease,
        find=by_statement(ONE_LIVE),
    ),
    Invariant(
        id="L2",
        sentence="Fences grow with every grant and transfer, and never repeat.",
        subject=Lease,
        find=by_statement(FENCES),
    ),
    Invariant(
        id="L3",
        sentence="Nothing is sent to a provider but under a live lease of its own attempt.",
        subject=ProviderRequest,
        find=by_statement(SENT_UNDER_A_LEASE),
    ),
    Invariant(
        id="L4",
        sentence="A lease stays within its ttl, its lifetime and its renewal budget.",
        subject=Lease,
        find=by_statement(BOUNDS),
    ),
    Invariant(
        id="L5",
        sentence="A renewal is one version, counted, and moves nothing else of a lease.",
        subject=Lease,
        find=by_statement(RENEWAL_PURITY),
    ),
    Invariant(
        id="L8",
        sentence="A lease ends once; one transferred goes on in its one successor.",
        subject=Lease,
        find=by_statement(TRANSFERS),
    ),
    Invariant(
        id="SPEC L1",
        sentence="No lease outlives its attempt.",
        subject=Lease,
        find=by_statement(OUTLIVES_ATTEMPT),
    ),
    Invariant(
        id="SPEC N",
        sentence="A terminal job holds no live lease.",
        subject=Lease,
        find=by_statement(OF_A_TERMINAL_JOB),
    ),
    Invariant(
        id="Q6",
        sentence="A pool has no more live permits than its limit (unless it was lowered).",
        subject=PermitPool,
        find=by_statement(PERMITS),
    ),
    Invariant(
        id="Q7",
        sentence="A worker's lease is of an attempt that this worker claimed.",
        subject=Lease,
        find=by_statement(OWNER),
    ),
    Invariant(
        id="SPEC B9",
        sentence="An open attempt that was claimed has its slot's live lease, which a sweep finds.",
        subject=Attempt,
        find=by_statement(WITHOUT_A_LEASE),
    ),
    Invariant(
        id="SPEC D2",
        sentence="A worker that is over offers no slot.",
        subject=Slot,
        find=by_statement(OFFERS),
    ),
    Invariant(
        id="Q4",
        sentence="A queued attempt has a message to be sent again, and no other has one.",
        subject=OutboxMessage,
        find=by_statement(DOORBELLS),
    ),
)
