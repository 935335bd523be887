"""A database that only the services wrote is green, whatever became of its jobs."""

import pytest

from leaseq.models import Hold, Job
from leaseq.queries.invariants import Scope
from leaseq.queries.verify import INVARIANTS, check
from tests.verify.world import World

pytestmark = pytest.mark.django_db


def test_a_clean_database_is_green(world: World) -> None:
    scope = Scope(now=world.time.read(), policies_unchanged=True)
    checked = list(check(INVARIANTS, scope=scope, shown_max=5))
    broken = {one.invariant.id: one.shown for one in checked if one.violations}
    assert broken == {}
    assert all(one.rows for one in checked)


def test_the_clean_database_has_seen_every_outcome(world: World) -> None:
    states = {job.task: job.state for job in Job.objects.all()}
    assert states == {
        "tests.completed": "completed",
        "tests.settled": "completed",
        "tests.overage": "completed",
        "tests.unpriced": "completed",
        "tests.failed": "failed",
        "tests.cancelled": "cancelled",
        "tests.cancelled_late": "cancelled",
        "tests.lost": "completed",
        "tests.resent": "completed",
        "tests.unknown": "dispatching",
        "tests.given_up": "failed",
        "tests.queue_expired": "expired",
        "tests.hold_expired": "expired",
        "tests.running": "running",
        "tests.queued": "queued",
        "tests.waiting": "admitted",
    }
    assert {hold.state for hold in Hold.objects.all()} == {"held", "settled", "released", "expired"}
