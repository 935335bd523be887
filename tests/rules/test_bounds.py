"""Each clock, when it runs and when it does not; and the earliest of them all."""

from datetime import timedelta

import pytest

from leaseq.rules import bounds as limits
from leaseq.rules.backoff import delay
from leaseq.vocabulary import EndReason

from .facts import HOUR, NOW, SECOND, TTL, some_bounds

IDLE = {"first_reserved_at": None, "reserved_at": None}


def test_no_clock_runs_before_anything_happened() -> None:
    assert limits.hard_deadline(some_bounds(**IDLE)) is None
    assert limits.capped_expiry(some_bounds(**IDLE), now=NOW, ttl=TTL) == NOW + TTL


def test_queue_time_runs_from_eligibility_and_counts_earlier_waits() -> None:
    bounds = some_bounds(waiting_since=NOW + SECOND, queue_time_used=20 * SECOND)
    assert limits.queue_deadline(bounds) == NOW + SECOND + HOUR - 20 * SECOND
    assert limits.queue_deadline(some_bounds(waiting_since=None)) is None


def test_the_wait_for_a_provider_ends_with_the_start() -> None:
    waiting = some_bounds(accepted_at=NOW)
    started = some_bounds(accepted_at=NOW, started_at=NOW + SECOND)
    assert limits.provider_wait_deadline(waiting) == NOW + HOUR
    assert limits.provider_wait_deadline(started) is None
    assert limits.run_deadline(started) == NOW + SECOND + HOUR
    assert limits.run_deadline(waiting) is None


def test_progress_moves_the_stall_deadline_and_an_old_report_does_not() -> None:
    running = {"started_at": NOW, "stall_limit": SECOND}
    assert limits.stall_deadline(some_bounds(**running)) == NOW + SECOND
    seen = some_bounds(**running, progress_at=NOW + SECOND)
    assert limits.stall_deadline(seen) == NOW + 2 * SECOND
    old = some_bounds(**running, progress_at=NOW - SECOND)
    assert limits.stall_deadline(old) == NOW + SECOND
    assert limits.stall_deadline(some_bounds(started_at=NOW)) is None
    assert limits.stall_deadline(some_bounds(stall_limit=SECOND)) is None


def test_the_earlier_of_two_first_reservations_counts() -> None:
    bounds = some_bounds(first_reserved_at=NOW, lease_life_max=HOUR)
    earlier = limits.lease_life_deadline(bounds, first_reserved_at=NOW - SECOND)
    later = limits.lease_life_deadline(bounds, first_reserved_at=NOW + SECOND)
    assert (earlier, later) == (NOW - SECOND + HOUR, NOW + HOUR)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_reserved_at": NOW, "lease_life_max": SECOND}, EndReason.MAX_LEASE_LIFE),
        ({"waiting_since": NOW, "queue_age_max": SECOND}, EndReason.MAX_QUEUE_AGE),
        ({"reserved_at": NOW, "reserved_time_max": SECOND}, EndReason.MAX_RESERVED_TIME),
        ({"started_at": NOW, "run_time_max": SECOND}, EndReason.MAX_RUN_TIME),
        ({"accepted_at": NOW, "provider_wait_max": SECOND}, EndReason.MAX_PROVIDER_WAIT),
        ({"started_at": NOW, "stall_limit": SECOND}, EndReason.STALLED),
    ],
)
def test_the_earliest_deadline_gives_the_reason(
    changes: dict[str, object], reason: EndReason
) -> None:
    earliest = limits.hard_deadline(some_bounds(**changes))
    assert earliest == limits.Deadline(at=NOW + SECOND, reason=reason)
    assert limits.capped_expiry(some_bounds(**changes), now=NOW, ttl=TTL) == NOW + SECOND


def test_what_remains_is_never_negative() -> None:
    spent = some_bounds(
        waiting_since=NOW - 2 * HOUR,
        first_reserved_at=NOW - 9 * HOUR,
        reserved_at=NOW - 9 * HOUR,
    )
    left = limits.remaining(spent, now=NOW, renewals_left=-3)
    zero = timedelta(0)
    assert left == limits.Remaining(lease_life=zero, reserved_time=zero, renewals=0, queue_age=zero)


def test_what_remains_before_anything_ran_is_the_whole_less_what_was_used() -> None:
    bounds = some_bounds(**IDLE, waiting_since=NOW + HOUR, reserved_time_used=HOUR)
    left = limits.remaining(bounds, now=NOW, renewals_left=3)
    assert left == limits.Remaining(
        lease_life=6 * HOUR, reserved_time=5 * HOUR, renewals=3, queue_age=HOUR
    )


@pytest.mark.parametrize(
    ("attempt", "jitter", "wait"),
    [
        (1, 0.0, SECOND),
        (3, 0.0, 4 * SECOND),
        (1, 0.5, 0.75 * SECOND),
        (6, 0.0, 32 * SECOND),
        (7, 0.0, 60 * SECOND),
        (10_000, 0.0, 60 * SECOND),
    ],
)
def test_a_delay_doubles_up_to_its_cap(attempt: int, jitter: float, wait: timedelta) -> None:
    assert delay(attempt, base=SECOND, cap=60 * SECOND, jitter=jitter) == wait


@pytest.mark.parametrize(
    ("attempt", "jitter", "base", "cap"),
    [
        (0, 0.0, SECOND, HOUR),
        (1, 1.0, SECOND, HOUR),
        (1, -0.1, SECOND, HOUR),
        (1, 0.0, timedelta(0), HOUR),
        (1, 0.0, HOUR, SECOND),
    ],
)
def test_a_delay_out_of_range_is_refused(
    attempt: int, jitter: float, base: timedelta, cap: timedelta
) -> None:
    with pytest.raises(ValueError, match=r"attempt is|jitter is|base is"):
        delay(attempt, base=base, cap=cap, jitter=jitter)


def test_a_delay_does_not_overflow_before_its_cap() -> None:
    century = timedelta(days=36_500)
    assert delay(90, base=century / 2, cap=century, jitter=0.0) == century
