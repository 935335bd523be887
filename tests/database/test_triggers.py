"""Each sentence that a trigger keeps (SPEC A1, A6, F1, F2, L1, L2)."""

import re
from decimal import Decimal

import pytest
from django.db import connection

from leaseq.db import triggers
from leaseq.models import Attempt, Job, Lease, Price
from leaseq.rules import transitions
from leaseq.services import attempts, holds, metering
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import JobState
from tests.conftest import LONG_AGO
from tests.database.conftest import copy_of, sentence
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db

LIVE = "WHERE status = 'active' AND worker_id IS NOT NULL"
RENEW = (
    "version = version + 1, renewal_count = renewal_count + 1, renewed_at = clock_timestamp(), "
    "expires_at = clock_timestamp() + interval '30 s'"
)
END = "status = 'released', ended_at = clock_timestamp(), end_reason = 'completed'"
CLOSE = "state = 'lost', ended_at = clock_timestamp(), reason = 'worker_lost'"
RELEASE = "held = 0, released = amount, closed_at = clock_timestamp(), reason = 'no_usage'"
RUNNING = "WHERE state = 'running'"
OPEN = "WHERE claimed_at IS NOT NULL"
EVENT = (
    "INSERT INTO leaseq_jobevent (job_id, version, kind, from_state, to_state, actor, reason, at, "
    "data) SELECT id, version + {step}, 'test', {before}, {after}, 'user:test', '', "
    "clock_timestamp() + interval '{late} s', '{{}}' FROM leaseq_job WHERE state = 'running'"
)


def event(
    *, step: int = 1, before: str = "state", after: str = "'cancelled'", late: int = 0
) -> str:
    return EVENT.format(step=step, before=before, after=after, late=late)


REFUSED: list[tuple[str, str]] = [
    ("ledger_entries_are_never_changed", "UPDATE leaseq_ledgerentry SET amount = amount + 1"),
    ("ledger_entries_are_never_changed", "DELETE FROM leaseq_ledgerentry"),
    ("job_events_are_never_changed", "UPDATE leaseq_jobevent SET actor = 'someone else'"),
    ("job_events_are_never_changed", "DELETE FROM leaseq_jobevent"),
    *(
        ("what_was_admitted_never_changes", f"UPDATE leaseq_job SET {one} {RUNNING}")
        for one in (
            "account_id = account_id + 1",
            "policy_id = policy_id + 1",
            "task = 'other'",
            "queue = 'other'",
            "provider = 'other'",
            "payload_digest = 'other'",
            "payload = '{}'",
            "idempotency_key = 'other'",
            "idempotency_key = NULL",
            "priority = 7",
            "submitted_at = submitted_at + interval '1 s'",
            "cost_ceiling = cost_ceiling + 1",
            "first_reserved_at = first_reserved_at + interval '1 s'",
            "first_reserved_at = NULL",
            "queue_age_max = queue_age_max * 2",
        )
    ),
    ("a_job_moves_with_a_new_version", f"UPDATE leaseq_job SET version = version - 1 {RUNNING}"),
    (
        "a_job_moves_with_a_new_version",
        f"UPDATE leaseq_job SET state = 'provider_accepted' {RUNNING}",
    ),
    (
        "a_job_is_in_the_state_of_its_last_event",
        f"UPDATE leaseq_job SET version = version + 1 {RUNNING}",
    ),
    (
        "a_job_is_in_the_state_of_its_last_event",
        copy_of("leaseq_job", where="state = 'queued'", id="gen_random_uuid()"),
    ),
    (
        "a_terminal_job_has_no_unclosed_attempt",
        (
            f"{event()}; UPDATE leaseq_job SET state = 'cancelled', version = version + 1, "
            f"ended_at = clock_timestamp(), reason = 'cancelled' {RUNNING}"
        ),
    ),
    ("a_job_begins_admitted", re.sub(r"version \+ 1, 'test'", "1, 'test'", event())),
    ("events_of_a_job_follow_each_other_without_a_gap", event(step=2)),
    ("events_of_a_job_follow_each_other_without_a_gap", event(before="'queued'")),
    ("events_of_a_job_follow_each_other_without_a_gap", event(late=-60)),
    ("a_job_moves_only_along_its_table", event(after="'queued'")),
    (
        "possibly_sent_never_goes_back",
        f"UPDATE leaseq_attempt SET possibly_sent = false {OPEN}",
    ),
    *(
        ("the_times_of_an_attempt_are_set_once", f"UPDATE leaseq_attempt SET {one} {OPEN}")
        for one in (
            "number = 2",
            "opened_at = opened_at - interval '1 s'",
            "reserved_at = reserved_at - interval '1 s'",
            "claimed_at = claimed_at - interval '1 s'",
            "accepted_at = accepted_at + interval '1 s'",
            "started_at = started_at + interval '1 s'",
            "started_at = NULL",
        )
    ),
    ("no_lease_outlives_its_attempt", f"UPDATE leaseq_attempt SET {CLOSE} {OPEN}"),
    *(
        ("a_lease_changes_one_version_at_a_time", f"UPDATE leaseq_lease SET {one} {LIVE}")
        for one in ("expires_at = expires_at + interval '1 s'", "version = version + 2")
    ),
    *(
        (
            "a_renewal_is_counted_and_time_goes_forward",
            f"UPDATE leaseq_lease SET version = version + 1, {one} {LIVE}",
        )
        for one in (
            "renewed_at = clock_timestamp()",
            "renewed_at = clock_timestamp(), renewal_count = renewal_count + 2",
            "renewal_count = renewal_count + 1",
            "renewal_count = renewal_count + 1, renewed_at = created_at - interval '1 s'",
        )
    ),
    (
        "an_expired_lease_is_never_renewed",
        (
            "UPDATE leaseq_lease SET version = version + 1, renewal_count = renewal_count + 1, "
            f"renewed_at = expires_at, expires_at = expires_at + interval '30 s' {LIVE}"
        ),
    ),
    (
        "an_ending_does_not_renew",
        (
            f"UPDATE leaseq_lease SET {END}, version = version + 1, "
            f"expires_at = expires_at + interval '1 s' {LIVE}"
        ),
    ),
    (
        "an_ended_lease_never_changes",
        (
            "UPDATE leaseq_lease SET status = 'active', ended_at = NULL, end_reason = NULL, "
            "version = version + 1 WHERE status = 'transferred'"
        ),
    ),
    *(
        ("a_hold_is_never_extended_or_enlarged", f"UPDATE leaseq_hold SET {one}")
        for one in (
            "amount = amount + 1, held = held + 1",
            "expires_at = expires_at + interval '1 s'",
            "created_at = created_at - interval '1 s'",
            "account_id = account_id + 1",
            "job_id = gen_random_uuid()",
        )
    ),
    *(
        (
            "no_hold_is_released_while_an_outcome_is_unknown",
            (
                f"UPDATE leaseq_hold SET state = '{state}', {RELEASE} "
                f"WHERE job_id = (SELECT id FROM leaseq_job {RUNNING})"
            ),
        )
        for state in ("released", "expired")
    ),
]
IN_ANOTHER_STATE = {
    "completed_and_cancelled_never_change",
    "a_closed_attempt_never_changes",
    "a_closed_hold_is_never_reopened",
    "a_renewal_changes_only_expiry_version_and_count",
}


def test_a_trigger_refuses_each_by_its_sentence(world: Job) -> None:
    # One world for all: whatever a statement did is rolled back before the next.
    before = photograph()
    assert [(sentence(statement), statement) for _, statement in REFUSED] == REFUSED
    assert photograph() == before


def test_every_sentence_of_the_triggers_has_its_row_here() -> None:
    text = "".join(triggers.FORWARD)
    named = set(re.findall(r"leaseq_(?:refuse|append_only)\('(\w+)'", text))
    assert {row[0] for row in REFUSED} | IN_ANOTHER_STATE == named


@pytest.mark.parametrize("state", ["admitted", "failed", "running"])
def test_a_completed_job_never_changes(begun: Claimed, state: str) -> None:
    attempts.complete(begun.proof, result=1)
    moved = f"UPDATE leaseq_job SET state = '{state}', version = version + 1"
    assert sentence(moved) == "completed_and_cancelled_never_change"


@pytest.mark.parametrize("change", ["state = 'failed'", "state = 'open'", "result = '2'"])
def test_a_closed_attempt_never_changes(begun: Claimed, change: str) -> None:
    attempts.complete(begun.proof, result=1)
    assert sentence(f"UPDATE leaseq_attempt SET {change}") == "a_closed_attempt_never_changes"
    assert sentence("UPDATE leaseq_attempt SET result = NULL") == ""


def test_no_lease_is_granted_to_a_closed_attempt(begun: Claimed) -> None:
    attempts.complete(begun.proof, result=1)
    granted = copy_of(
        "leaseq_lease",
        id="gen_random_uuid()",
        fence="900001",
        status="'active'",
        ended_at="NULL",
        end_reason="NULL",
    )
    assert sentence(granted) == "no_lease_outlives_its_attempt"


@pytest.mark.parametrize(
    "change",
    [
        "state = 'held', held = amount, released = 0, closed_at = NULL, reason = NULL",
        "state = 'expired'",
    ],
)
def test_a_closed_hold_is_never_reopened(begun: Claimed, change: str) -> None:
    attempts.complete(begun.proof, result=1)
    assert holds.settle(begun.job_id) == "released"
    assert sentence(f"UPDATE leaseq_hold SET {change}") == "a_closed_hold_is_never_reopened"


def test_a_settled_hold_keeps_its_amounts(begun: Claimed) -> None:
    Price.objects.create(
        provider="local", unit="word", currency="EUR", amount=Decimal("0.1"), valid_from=LONG_AGO
    )
    metering.record_usage(begun.proof, unit="word", quantity=Decimal(2))
    attempts.complete(begun.proof, result=1)
    assert holds.settle(begun.job_id) == "settled"
    change = "settled = settled + 0.1, released = released - 0.1"
    assert sentence(f"UPDATE leaseq_hold SET {change}") == "a_closed_hold_is_never_reopened"


def test_a_hold_is_released_once_the_outcome_is_known(begun: Claimed) -> None:
    assert sentence(f"UPDATE leaseq_hold SET state = 'released', {RELEASE}") == ""
    Attempt.objects.update(possibly_sent=True)
    Attempt.objects.update(state="outcome_unknown", unknown_since="2026-01-01T00:00Z")
    refused = sentence(f"UPDATE leaseq_hold SET state = 'released', {RELEASE}")
    assert refused == "no_hold_is_released_while_an_outcome_is_unknown"


RENEWED = {"expires_at", "version", "renewal_count", "renewed_at", "renewal_key"}
ANOTHER = {
    "uuid": "gen_random_uuid()",
    "integer": "coalesce({0}, 0) + 1",
    "bigint": "coalesce({0}, 0) + 1",
    "timestamp with time zone": "coalesce({0}, clock_timestamp()) + interval '1 s'",
    "character varying": "'another'",
}
TYPES = """
SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'leaseq_lease'
"""


def test_a_renewal_moves_no_other_column(world: Job) -> None:
    """SPEC L2, PROMISES L5: whatever else an UPDATE would move, PostgreSQL refuses it whole."""
    columns = {str(one.column) for one in Lease._meta.concrete_fields} - RENEWED
    with connection.cursor() as cursor:
        cursor.execute(TYPES)
        types = dict(cursor.fetchall())

    def refused(column: str) -> str:
        other = ANOTHER[types[column]].format(column)
        return sentence(f"UPDATE leaseq_lease SET {RENEW}, {column} = {other} {LIVE}")

    assert sentence(f"UPDATE leaseq_lease SET {RENEW} {LIVE}") == ""
    purity = "a_renewal_changes_only_expiry_version_and_count"
    # What an ending alone sets is kept out by its own sentences.
    ending = {
        "status": "an_ending_does_not_renew",
        "ended_at": "a_lease_has_an_end_and_a_reason_only_when_ended",
        "end_reason": "a_lease_has_an_end_and_a_reason_only_when_ended",
    }
    expected = {one: ending.get(one, purity) for one in columns}
    assert {one: refused(one) for one in columns} == expected


def test_every_move_of_a_job_is_judged_alike_by_the_rule_and_by_the_trigger(job: Job) -> None:
    """SPEC A1: all pairs of states, through both tables of moves."""
    by_rule, by_trigger = set(), set()
    for before in JobState:
        for after in JobState:
            if before is after:
                continue
            readmitted = after is JobState.ADMITTED and transitions.readmission_is_legal(before)
            if readmitted or transitions.job_move_is_legal(before, after):
                by_rule.add((before, after))
            if _trigger_takes(job, before, after):
                by_trigger.add((before, after))
    assert by_trigger == by_rule
    assert len(by_rule) == 31


def test_news_that_moves_nothing_may_come_in_any_state(job: Job) -> None:
    assert all(_trigger_takes(job, state, state) for state in JobState)


def _trigger_takes(job: Job, before: JobState, after: JobState) -> bool:
    """Plant an event that led to one state, and say whether one that leads on is taken."""
    plant = (
        "ALTER TABLE leaseq_jobevent DISABLE TRIGGER USER; "
        f"UPDATE leaseq_jobevent SET to_state = '{before}'; "
        "SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE leaseq_jobevent ENABLE TRIGGER USER; "
    )
    onward = (
        "INSERT INTO leaseq_jobevent (job_id, version, kind, from_state, to_state, actor, reason, "
        f"at, data) VALUES ('{job.pk}', 2, 'test', '{before}', '{after}', 'user:test', '', "
        "clock_timestamp(), '{}')"
    )
    refused = sentence(plant + onward)
    assert refused in {"", "a_job_moves_only_along_its_table"}
    return refused == ""
