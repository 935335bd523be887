"""Each sentence that a table's own checks and unique indexes keep (SPEC 0, B3, F1, L1)."""

import pytest
from django.apps import apps

from leaseq.models import Job
from tests.database.conftest import copy_of, sentence

pytestmark = pytest.mark.django_db

NEW_ID = "gen_random_uuid()"
NEXT = "900001"
SLOT = "resource_type = 'slot' AND status = 'active'"
PERMIT = "resource_type = 'permit' AND status = 'active' AND worker_id IS NOT NULL"
OTHER_ATTEMPT = "(SELECT id FROM leaseq_attempt WHERE claimed_at IS NULL LIMIT 1)"
OTHER_SLOT = "(SELECT max(id) FROM leaseq_slot)"
RUNNING = "WHERE state = 'running'"
WAITING = "WHERE state = 'queued'"
OPEN = "WHERE claimed_at IS NOT NULL"

REFUSED: list[tuple[str, str, str]] = [
    ("an_epoch_is_raised_above_the_first", "epoch", "SET number = 1"),
    ("account_amounts_are_not_negative", "account", "SET held = -1"),
    ("account_amounts_are_not_negative", "account", 'SET "limit" = -1'),
    ("account_amounts_are_not_negative", "account", "SET settled = -0.000000001"),
    ("account_currency_is_three_capital_letters", "account", "SET currency = 'eur'"),
    ("account_currency_is_three_capital_letters", "account", "SET currency = 'E'"),
    (
        "hold_state_is_a_known_word",
        "hold",
        (
            "SET state = 'gone', held = 0, released = amount, "
            "closed_at = created_at, reason = 'no_usage'"
        ),
    ),
    ("one_open_hold_per_job", "hold", copy_of("leaseq_hold", id=NEW_ID)),
    ("hold_amounts_are_not_negative", "hold", "SET held = amount + 1, released = -1"),
    (
        "hold_reason_is_a_known_word",
        "hold",
        (
            "SET state = 'released', held = 0, released = amount, "
            "closed_at = created_at, reason = 'whim'"
        ),
    ),
    ("authorised_is_held_and_settled_and_released", "hold", "SET held = held / 2"),
    ("a_closed_hold_holds_nothing_and_says_why", "hold", "SET state = 'released'"),
    ("a_closed_hold_holds_nothing_and_says_why", "hold", "SET closed_at = created_at"),
    (
        "a_closed_hold_holds_nothing_and_says_why",
        "hold",
        "SET state = 'released', held = 0, released = amount, closed_at = created_at",
    ),
    ("entry_kind_is_a_known_word", "ledgerentry", "SET kind = 'gift'"),
    ("entry_source_is_a_known_book", "ledgerentry", "SET source = 'pocket'"),
    ("entry_target_is_a_known_book", "ledgerentry", "SET target = 'pocket'"),
    ("an_entry_moves_more_than_nothing", "ledgerentry", "SET amount = 0"),
    ("an_entry_moves_between_two_books", "ledgerentry", "SET target = source"),
    ("one_price_per_unit_and_moment", "price", copy_of("leaseq_price", id=NEXT)),
    ("a_price_is_not_negative", "price", "SET amount = -1"),
    ("one_usage_line_per_attempt_and_unit", "usagerecord", copy_of("leaseq_usagerecord", id=NEXT)),
    ("usage_quantity_is_not_negative", "usagerecord", "SET quantity = -1"),
    ("usage_has_a_cost_only_when_priced", "usagerecord", "SET unit_price = NULL"),
    ("usage_has_a_cost_only_when_priced", "usagerecord", "SET cost = -1"),
    ("usage_has_a_cost_only_when_priced", "usagerecord", "SET unit_price = 1, cost = NULL"),
    ("policy_on_bound_is_a_known_word", "servingpolicy", "SET on_bound = 'retry'"),
    ("policy_when_no_permit_is_a_known_word", "servingpolicy", "SET when_no_permit = 'beg'"),
    (
        "policy_ttl_is_at_least_one_second",
        "servingpolicy",
        "SET lease_ttl = '0.9 s', renew_every = '0.1 s'",
    ),
    ("policy_renews_at_least_twice_within_a_ttl", "servingpolicy", "SET renew_every = '15 s'"),
    *(
        ("policy_durations_are_above_zero", "servingpolicy", f"SET {one} = '0'")
        for one in (
            "renew_every",
            "queue_age_max",
            "lease_life_max",
            "reserved_time_max",
            "run_time_max",
            "provider_wait_max",
            "hold_ttl",
            "uncertain_max",
        )
    ),
    *(
        ("policy_durations_are_at_most_ten_years", "servingpolicy", f"SET {one} = '3651 days'")
        for one in ("lease_ttl", "queue_age_max", "run_time_max", "retry_cap", "stall_limit")
    ),
    ("policy_stall_limit_is_above_zero", "servingpolicy", "SET stall_limit = '0'"),
    ("policy_waits_are_in_order", "servingpolicy", "SET retry_base = '0'"),
    ("policy_waits_are_in_order", "servingpolicy", "SET retry_cap = retry_base / 2"),
    ("policy_waits_are_in_order", "servingpolicy", "SET stop_grace = '-1 s'"),
    ("policy_allows_at_least_one_attempt", "servingpolicy", "SET attempts_max = 0"),
    ("policy_cost_ceiling_is_not_negative", "servingpolicy", "SET cost_ceiling = -1"),
    ("job_state_is_a_known_word", "job", f"SET state = 'lost' {RUNNING}"),
    (
        "one_job_per_account_and_idempotency_key",
        "job",
        copy_of("leaseq_job", where="state = 'running'", id=NEW_ID),
    ),
    (
        "job_reason_is_a_known_word",
        "job",
        (
            "SET state = 'failed', ended_at = submitted_at, settle_at = submitted_at, "
            f"reason = 'whim' {RUNNING}"
        ),
    ),
    ("job_cost_ceiling_is_not_negative", "job", "SET cost_ceiling = -1"),
    (
        "a_job_has_an_end_and_a_reason_only_when_terminal",
        "job",
        f"SET state = 'completed' {RUNNING}",
    ),
    (
        "a_job_has_an_end_and_a_reason_only_when_terminal",
        "job",
        f"SET ended_at = submitted_at {RUNNING}",
    ),
    (
        "a_job_has_an_end_and_a_reason_only_when_terminal",
        "job",
        f"SET reason = 'completed' {RUNNING}",
    ),
    ("dead_letter_marks_only_failed_or_expired_jobs", "job", "SET dead_letter = true"),
    (
        "the_queue_clock_runs_only_while_a_job_waits",
        "job",
        f"SET waiting_since = submitted_at {RUNNING}",
    ),
    ("the_queue_clock_runs_only_while_a_job_waits", "job", f"SET waiting_since = NULL {WAITING}"),
    (
        "only_an_ended_job_is_erased_and_it_never_runs_again",
        "job",
        f"SET erased_at = submitted_at {RUNNING}",
    ),
    (
        "attempt_state_is_a_known_word",
        "attempt",
        f"SET state = 'gone', ended_at = opened_at, reason = 'completed' {OPEN}",
    ),
    (
        "attempt_numbers_do_not_repeat_within_a_job",
        "attempt",
        copy_of(
            "leaseq_attempt",
            id=NEW_ID,
            state="'lost'",
            reason="'worker_lost'",
            ended_at="clock_timestamp()",
        ),
    ),
    ("one_unclosed_attempt_per_job", "attempt", copy_of("leaseq_attempt", id=NEW_ID, number="2")),
    (
        "one_unclosed_attempt_per_job",
        "attempt",
        copy_of(
            "leaseq_attempt",
            where="possibly_sent",
            id=NEW_ID,
            number="2",
            state="'outcome_unknown'",
        ),
    ),
    ("an_attempt_has_an_end_and_a_reason_only_when_closed", "attempt", "SET state = 'lost'"),
    ("an_attempt_has_an_end_and_a_reason_only_when_closed", "attempt", "SET ended_at = opened_at"),
    (
        "an_attempt_has_an_end_and_a_reason_only_when_closed",
        "attempt",
        "SET state = 'lost', ended_at = opened_at",
    ),
    (
        "claimed_then_accepted_then_started",
        "attempt",
        f"SET accepted_at = claimed_at - interval '1 s' {OPEN}",
    ),
    (
        "claimed_then_accepted_then_started",
        "attempt",
        f"SET started_at = accepted_at - interval '1 s' {OPEN}",
    ),
    (
        "claimed_then_accepted_then_started",
        "attempt",
        f"SET claimed_at = NULL {OPEN}",
    ),
    (
        "claimed_then_accepted_then_started",
        "attempt",
        f"SET accepted_at = NULL {OPEN}",
    ),
    (
        "attempt_reason_is_a_known_word",
        "attempt",
        f"SET state = 'failed', ended_at = opened_at, reason = 'whim' {OPEN}",
    ),
    (
        "only_a_possibly_sent_attempt_is_of_unknown_outcome",
        "attempt",
        f"SET state = 'outcome_unknown', possibly_sent = false {OPEN}",
    ),
    ("one_event_per_version_of_a_job", "jobevent", copy_of("leaseq_jobevent", id=NEXT)),
    ("every_event_names_its_actor", "jobevent", "SET actor = ''"),
    ("event_to_state_is_a_known_word", "jobevent", "SET to_state = 'lost'"),
    ("one_open_finding_per_kind_and_job", "finding", copy_of("leaseq_finding", id=NEXT)),
    ("worker_state_is_a_known_word", "workernode", "SET state = 'tired'"),
    ("a_worker_incarnation_registers_once", "workernode", copy_of("leaseq_workernode", id=NEW_ID)),
    ("one_slot_row_per_physical_unit", "slot", copy_of("leaseq_slot", id=NEXT)),
    ("pool_kind_is_a_known_word", "permitpool", "SET kind = 'planet'"),
    ("one_pool_per_kind_and_key", "permitpool", copy_of("leaseq_permitpool", id=NEXT)),
    (
        "lease_status_is_a_known_word",
        "lease",
        f"SET status = 'lent', ended_at = expires_at, end_reason = 'claimed' WHERE {SLOT}",
    ),
    (
        "lease_end_reason_is_a_known_word",
        "lease",
        f"SET status = 'released', ended_at = expires_at, end_reason = 'whim' WHERE {SLOT}",
    ),
    (
        "a_lease_is_of_one_slot_or_of_one_permit_pool",
        "lease",
        f"SET resource_type = 'permit' WHERE {SLOT}",
    ),
    (
        "a_lease_is_of_one_slot_or_of_one_permit_pool",
        "lease",
        f"SET resource_type = 'money' WHERE {SLOT}",
    ),
    (
        "a_lease_is_of_one_slot_or_of_one_permit_pool",
        "lease",
        f"SET pool_id = (SELECT id FROM leaseq_permitpool) WHERE {SLOT}",
    ),
    (
        "one_live_lease_per_slot",
        "lease",
        copy_of("leaseq_lease", where=SLOT, id=NEW_ID, fence=NEXT, attempt_id=OTHER_ATTEMPT),
    ),
    (
        "one_live_permit_per_attempt_and_pool",
        "lease",
        copy_of("leaseq_lease", where=PERMIT, id=NEW_ID, fence=NEXT, predecessor_id="NULL"),
    ),
    (
        "one_live_slot_per_attempt",
        "lease",
        copy_of("leaseq_lease", where=SLOT, id=NEW_ID, fence=NEXT, slot_id=OTHER_SLOT),
    ),
    (
        "a_fencing_token_never_repeats",
        "lease",
        copy_of(
            "leaseq_lease",
            where=SLOT,
            id=NEW_ID,
            status="'released'",
            end_reason="'completed'",
            ended_at="clock_timestamp()",
        ),
    ),
    (
        "a_lease_has_an_end_and_a_reason_only_when_ended",
        "lease",
        f"SET status = 'released' WHERE {SLOT}",
    ),
    (
        "a_lease_has_an_end_and_a_reason_only_when_ended",
        "lease",
        f"SET end_reason = 'claimed' WHERE {SLOT}",
    ),
    (
        "a_lease_ends_no_earlier_than_it_was_granted",
        "lease",
        (
            "SET status = 'released', end_reason = 'completed', "
            f"ended_at = created_at - interval '1 s' WHERE {SLOT}"
        ),
    ),
    ("a_lease_expires_after_it_was_granted", "lease", "SET expires_at = created_at"),
    (
        "request_state_is_a_known_word",
        "providerrequest",
        "SET state = 'gone', ended_at = prepared_at",
    ),
    ("a_request_has_an_end_only_when_it_is_over", "providerrequest", "SET state = 'failed'"),
    ("a_request_has_an_end_only_when_it_is_over", "providerrequest", "SET ended_at = prepared_at"),
]
OVERLAPPING = """
INSERT INTO leaseq_lease SELECT (jsonb_populate_record(x, jsonb_build_object(
    'id', gen_random_uuid(), 'fence', 900000 + n, 'status', 'released', 'end_reason', 'completed',
    'created_at', x.created_at + make_interval(secs => n * {apart}),
    'expires_at', x.created_at + make_interval(secs => n * {apart} + 10),
    'ended_at', x.created_at + make_interval(secs => n * {apart} + 10)))).*
FROM leaseq_lease x, generate_series(1, 2) n WHERE x.resource_type = 'slot'
"""


def test_postgresql_itself_refuses_each_by_its_sentence(world: Job) -> None:
    # One world for all: whatever a statement did is rolled back before the next.
    refused = []
    for _, table, statement in REFUSED:
        name = f"leaseq_{table}"
        whole = statement if statement.startswith("INSERT") else f"UPDATE {name} {statement}"
        refused.append((sentence(whole, guards_of=name), table, statement))
    assert refused == REFUSED


def test_every_sentence_of_the_tables_has_its_row_here() -> None:
    models = apps.get_app_config("leaseq").get_models()
    named = {one.name for model in models for one in model._meta.constraints}
    assert {row[0] for row in REFUSED} == named


@pytest.mark.parametrize(
    ("apart", "name"),
    [
        pytest.param(9, "leases_of_a_slot_never_overlapped", id="they overlap by one second"),
        pytest.param(10, "", id="one begins as the other ends"),
        pytest.param(11, "", id="there is a second between them"),
    ],
)
def test_past_leases_of_a_slot_never_overlapped(world: Job, apart: int, name: str) -> None:
    """PROMISES P1, in history too."""
    assert sentence(OVERLAPPING.format(apart=apart), guards_of="leaseq_lease") == name
