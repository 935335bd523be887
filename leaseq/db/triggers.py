"""SQL text of the triggers, used by the migrations (SPEC A6, F1, L1, L2).

Each refusal is a check_violation with a sentence as its constraint name, so that Django raises
IntegrityError and the log says what was broken. The tables of moves repeat `rules.transitions`;
a test walks every pair through both.

TRUNCATE is left alone: test suites flush their tables with it, and whoever may truncate may also
drop a trigger. Database roles take that right away from the application.
"""

REFUSE = """
CREATE OR REPLACE FUNCTION leaseq_refuse(sentence text, detail text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'leaseq: % (%)', replace(sentence, '_', ' '), detail
    USING ERRCODE = 'check_violation', CONSTRAINT = sentence;
END $$;
"""

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION leaseq_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leaseq_refuse(TG_ARGV[0], format('row %s', OLD.id));
  RETURN NULL;
END $$;
CREATE TRIGGER ledger_entries_are_never_changed BEFORE UPDATE OR DELETE ON leaseq_ledgerentry
  FOR EACH ROW EXECUTE FUNCTION leaseq_append_only('ledger_entries_are_never_changed');
CREATE TRIGGER job_events_are_never_changed BEFORE UPDATE OR DELETE ON leaseq_jobevent
  FOR EACH ROW EXECUTE FUNCTION leaseq_append_only('job_events_are_never_changed');
"""

JOB = """
CREATE OR REPLACE FUNCTION leaseq_job_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.account_id, NEW.policy_id, NEW.task, NEW.queue, NEW.provider, NEW.payload_digest,
      NEW.idempotency_key, NEW.priority, NEW.submitted_at, NEW.cost_ceiling)
     IS DISTINCT FROM
     (OLD.account_id, OLD.policy_id, OLD.task, OLD.queue, OLD.provider, OLD.payload_digest,
      OLD.idempotency_key, OLD.priority, OLD.submitted_at, OLD.cost_ceiling)
     OR (OLD.first_reserved_at IS NOT NULL
         AND NEW.first_reserved_at IS DISTINCT FROM OLD.first_reserved_at)
     OR (NEW.queue_age_max <> OLD.queue_age_max AND OLD.state NOT IN ('failed', 'expired'))
     OR (NEW.erased_at IS NULL AND NEW.payload IS DISTINCT FROM OLD.payload)
  THEN
    PERFORM leaseq_refuse('what_was_admitted_never_changes', OLD.id::text);
  END IF;
  IF OLD.state IN ('completed', 'cancelled') AND NEW.state <> OLD.state THEN
    PERFORM leaseq_refuse('completed_and_cancelled_never_change', OLD.id::text);
  END IF;
  IF NEW.version < OLD.version OR (NEW.state <> OLD.state AND NEW.version = OLD.version) THEN
    PERFORM leaseq_refuse('a_job_moves_with_a_new_version', OLD.id::text);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_job_guard BEFORE UPDATE ON leaseq_job
  FOR EACH ROW EXECUTE FUNCTION leaseq_job_guard();

CREATE OR REPLACE FUNCTION leaseq_job_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM leaseq_jobevent
                 WHERE job_id = NEW.id AND version = NEW.version AND to_state = NEW.state) THEN
    PERFORM leaseq_refuse('a_job_is_in_the_state_of_its_last_event', NEW.id::text);
  END IF;
  IF NEW.state IN ('completed', 'cancelled', 'expired', 'failed') AND (
    EXISTS (SELECT 1 FROM leaseq_attempt
            WHERE job_id = NEW.id AND state IN ('open', 'outcome_unknown'))) THEN
    PERFORM leaseq_refuse('a_terminal_job_has_no_unclosed_attempt', NEW.id::text);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER leaseq_job_at_commit_insert AFTER INSERT ON leaseq_job
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION leaseq_job_at_commit();
CREATE CONSTRAINT TRIGGER leaseq_job_at_commit_update AFTER UPDATE ON leaseq_job
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.version <> OLD.version)
  EXECUTE FUNCTION leaseq_job_at_commit();
"""

# A verb may move a job twice in one transaction, so the moves are checked event by event.
EVENT = """
CREATE OR REPLACE FUNCTION leaseq_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.version = 1 THEN
    IF NEW.from_state IS NOT NULL OR NEW.to_state <> 'admitted' THEN
      PERFORM leaseq_refuse('a_job_begins_admitted', NEW.job_id::text);
    END IF;
    RETURN NEW;
  END IF;
  IF NOT EXISTS (SELECT 1 FROM leaseq_jobevent
                 WHERE job_id = NEW.job_id AND version = NEW.version - 1
                   AND to_state = NEW.from_state AND at <= NEW.at) THEN
    PERFORM leaseq_refuse('events_of_a_job_follow_each_other_without_a_gap',
                          format('%s version %s', NEW.job_id, NEW.version));
  END IF;
  IF NEW.from_state <> NEW.to_state AND (NEW.from_state, NEW.to_state) NOT IN (
      ('admitted', 'reserved'), ('reserved', 'queued'), ('queued', 'dispatching'),
      ('dispatching', 'provider_accepted'), ('provider_accepted', 'running'),
      ('running', 'completed'),
      ('reserved', 'admitted'), ('queued', 'admitted'), ('dispatching', 'admitted'),
      ('provider_accepted', 'admitted'), ('running', 'admitted'),
      ('failed', 'admitted'), ('expired', 'admitted'),
      ('admitted', 'cancelled'), ('reserved', 'cancelled'), ('queued', 'cancelled'),
      ('dispatching', 'cancelled'), ('provider_accepted', 'cancelled'), ('running', 'cancelled'),
      ('admitted', 'expired'), ('reserved', 'expired'), ('queued', 'expired'),
      ('dispatching', 'expired'), ('provider_accepted', 'expired'), ('running', 'expired'),
      ('admitted', 'failed'), ('reserved', 'failed'), ('queued', 'failed'),
      ('dispatching', 'failed'), ('provider_accepted', 'failed'), ('running', 'failed')) THEN
    PERFORM leaseq_refuse('a_job_moves_only_along_its_table',
                          format('%s: %s to %s', NEW.job_id, NEW.from_state, NEW.to_state));
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_event_guard BEFORE INSERT ON leaseq_jobevent
  FOR EACH ROW EXECUTE FUNCTION leaseq_event_guard();
"""

ATTEMPT = """
CREATE OR REPLACE FUNCTION leaseq_attempt_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.possibly_sent AND NOT NEW.possibly_sent THEN
    PERFORM leaseq_refuse('possibly_sent_never_goes_back', OLD.id::text);
  END IF;
  IF (NEW.job_id, NEW.number, NEW.opened_at)
     IS DISTINCT FROM (OLD.job_id, OLD.number, OLD.opened_at)
     OR (OLD.reserved_at IS NOT NULL AND NEW.reserved_at IS DISTINCT FROM OLD.reserved_at)
     OR (OLD.claimed_at IS NOT NULL AND NEW.claimed_at IS DISTINCT FROM OLD.claimed_at)
     OR (OLD.accepted_at IS NOT NULL AND NEW.accepted_at IS DISTINCT FROM OLD.accepted_at)
     OR (OLD.started_at IS NOT NULL AND NEW.started_at IS DISTINCT FROM OLD.started_at)
     OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at)
  THEN
    PERFORM leaseq_refuse('the_times_of_an_attempt_are_set_once', OLD.id::text);
  END IF;
  IF NEW.state <> OLD.state AND (
       OLD.state NOT IN ('open', 'outcome_unknown') OR NEW.state = 'open') THEN
    PERFORM leaseq_refuse('a_closed_attempt_never_changes',
                          format('%s: %s to %s', OLD.id, OLD.state, NEW.state));
  END IF;
  IF OLD.state NOT IN ('open', 'outcome_unknown')
     AND NEW.result IS DISTINCT FROM OLD.result AND NEW.result IS NOT NULL THEN
    PERFORM leaseq_refuse('a_closed_attempt_never_changes', OLD.id::text);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_attempt_guard BEFORE UPDATE ON leaseq_attempt
  FOR EACH ROW EXECUTE FUNCTION leaseq_attempt_guard();

CREATE OR REPLACE FUNCTION leaseq_attempt_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM leaseq_lease WHERE attempt_id = NEW.id AND status = 'active') THEN
    PERFORM leaseq_refuse('no_lease_outlives_its_attempt', NEW.id::text);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER leaseq_attempt_at_commit AFTER UPDATE ON leaseq_attempt
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.state NOT IN ('open', 'outcome_unknown'))
  EXECUTE FUNCTION leaseq_attempt_at_commit();
"""

# A bulk renewal writes every row of a page again in one transaction, so that more than half of
# each page stays free: every renewal then finds room beside its row and touches no index.
LEASE = """
CREATE OR REPLACE FUNCTION leaseq_lease_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status <> 'active' THEN
    PERFORM leaseq_refuse('an_ended_lease_never_changes', OLD.id::text);
  END IF;
  IF (NEW.id, NEW.resource_type, NEW.slot_id, NEW.pool_id, NEW.job_id, NEW.attempt_id,
      NEW.worker_id, NEW.predecessor_id, NEW.fence_epoch, NEW.fence, NEW.renewals_before,
      NEW.created_at, NEW.first_reserved_at)
     IS DISTINCT FROM
     (OLD.id, OLD.resource_type, OLD.slot_id, OLD.pool_id, OLD.job_id, OLD.attempt_id,
      OLD.worker_id, OLD.predecessor_id, OLD.fence_epoch, OLD.fence, OLD.renewals_before,
      OLD.created_at, OLD.first_reserved_at)
  THEN
    PERFORM leaseq_refuse('a_renewal_changes_only_expiry_version_and_count', OLD.id::text);
  END IF;
  IF NEW.version <> OLD.version + 1 THEN
    PERFORM leaseq_refuse('a_lease_changes_one_version_at_a_time', OLD.id::text);
  END IF;
  IF NEW.status = 'active' THEN
    IF NEW.renewal_count <> OLD.renewal_count + 1 OR NEW.renewed_at IS NULL
       OR NEW.renewed_at < coalesce(OLD.renewed_at, OLD.created_at) THEN
      PERFORM leaseq_refuse('a_renewal_is_counted_and_time_goes_forward', OLD.id::text);
    END IF;
    IF NEW.renewed_at >= OLD.expires_at THEN
      PERFORM leaseq_refuse('an_expired_lease_is_never_renewed', OLD.id::text);
    END IF;
  ELSIF (NEW.expires_at, NEW.renewal_count) IS DISTINCT FROM (OLD.expires_at, OLD.renewal_count)
  THEN
    PERFORM leaseq_refuse('an_ending_does_not_renew', OLD.id::text);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_lease_guard BEFORE UPDATE ON leaseq_lease
  FOR EACH ROW EXECUTE FUNCTION leaseq_lease_guard();

CREATE OR REPLACE FUNCTION leaseq_lease_is_for_an_open_attempt() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM leaseq_attempt
                 WHERE id = NEW.attempt_id AND job_id = NEW.job_id
                   AND state IN ('open', 'outcome_unknown')) THEN
    PERFORM leaseq_refuse('no_lease_outlives_its_attempt', NEW.id::text);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_lease_is_for_an_open_attempt BEFORE INSERT ON leaseq_lease
  FOR EACH ROW EXECUTE FUNCTION leaseq_lease_is_for_an_open_attempt();
ALTER TABLE leaseq_lease SET (fillfactor = 45);
ALTER TABLE leaseq_attempt SET (fillfactor = 80);
ALTER TABLE leaseq_job SET (fillfactor = 80);
"""

# Over ended leases only, so that renewals touch no index; the extension is not everywhere.
LEASE_HISTORY = """
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'btree_gist') THEN
    CREATE EXTENSION IF NOT EXISTS btree_gist;
    ALTER TABLE leaseq_lease ADD CONSTRAINT leases_of_a_slot_never_overlapped
      EXCLUDE USING gist (slot_id WITH =, tstzrange(created_at, ended_at) WITH &&)
      WHERE (status <> 'active' AND slot_id IS NOT NULL);
  ELSE
    RAISE NOTICE 'leaseq: no btree_gist here; leaseq verify alone checks past overlaps';
  END IF;
END $$;
"""

HOLD = """
CREATE OR REPLACE FUNCTION leaseq_hold_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.account_id, NEW.job_id, NEW.amount, NEW.created_at, NEW.expires_at)
     IS DISTINCT FROM (OLD.account_id, OLD.job_id, OLD.amount, OLD.created_at, OLD.expires_at)
  THEN
    PERFORM leaseq_refuse('a_hold_is_never_extended_or_enlarged', OLD.id::text);
  END IF;
  IF OLD.state <> 'held' AND (
       NOT (OLD.state = 'settled' AND NEW.state IN ('settled', 'reversed'))
       OR (NEW.state = 'settled' AND (NEW.held, NEW.settled, NEW.released)
           IS DISTINCT FROM (OLD.held, OLD.settled, OLD.released)))
  THEN
    PERFORM leaseq_refuse('a_closed_hold_is_never_reopened',
                          format('%s: %s to %s', OLD.id, OLD.state, NEW.state));
  END IF;
  IF NEW.state IN ('released', 'expired') AND (
       EXISTS (SELECT 1 FROM leaseq_attempt
               WHERE job_id = NEW.job_id AND state = 'outcome_unknown')
       OR EXISTS (SELECT 1 FROM leaseq_providerrequest r JOIN leaseq_attempt a
                    ON a.id = r.attempt_id
                  WHERE a.job_id = NEW.job_id AND r.ended_at IS NULL)) THEN
    PERFORM leaseq_refuse('no_hold_is_released_while_an_outcome_is_unknown', OLD.id::text);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leaseq_hold_guard BEFORE UPDATE ON leaseq_hold
  FOR EACH ROW EXECUTE FUNCTION leaseq_hold_guard();
"""

FENCE_SEQUENCE = "CREATE SEQUENCE leaseq_fence;"

FORWARD = [
    REFUSE,
    FENCE_SEQUENCE,
    APPEND_ONLY,
    JOB,
    EVENT,
    ATTEMPT,
    LEASE,
    LEASE_HISTORY,
    HOLD,
]

BACKWARD = """
ALTER TABLE leaseq_lease DROP CONSTRAINT IF EXISTS leases_of_a_slot_never_overlapped;
DROP TRIGGER ledger_entries_are_never_changed ON leaseq_ledgerentry;
DROP TRIGGER job_events_are_never_changed ON leaseq_jobevent;
DROP FUNCTION leaseq_append_only();
DROP FUNCTION leaseq_job_guard() CASCADE;
DROP FUNCTION leaseq_job_at_commit() CASCADE;
DROP FUNCTION leaseq_event_guard() CASCADE;
DROP FUNCTION leaseq_attempt_guard() CASCADE;
DROP FUNCTION leaseq_attempt_at_commit() CASCADE;
DROP FUNCTION leaseq_lease_guard() CASCADE;
DROP FUNCTION leaseq_lease_is_for_an_open_attempt() CASCADE;
DROP FUNCTION leaseq_hold_guard() CASCADE;
DROP SEQUENCE leaseq_fence;
DROP FUNCTION leaseq_refuse(text, text);
"""
