"""Every invariant can fail: a corruption by hand turns it red, and the first are shown."""

import pytest
from django.apps import apps
from django.db import connection

from leaseq.queries.invariants import Scope
from leaseq.queries.verify import INVARIANTS, Checked, check
from tests.verify.corruptions import CORRUPTIONS
from tests.verify.planting import Corruption
from tests.verify.world import World

pytestmark = pytest.mark.django_db
# Not in every PostgreSQL, see the second migration.
PAST_OVERLAPS = "leases_of_a_slot_never_overlapped"


@pytest.fixture
def unguarded(world: World) -> World:
    """The installation with its triggers off until the transaction of the test ends."""
    with connection.cursor() as cursor:
        for model in apps.get_app_config("leaseq").get_models():
            cursor.execute(f"ALTER TABLE {model._meta.db_table} DISABLE TRIGGER USER")
        cursor.execute(f"ALTER TABLE leaseq_lease DROP CONSTRAINT IF EXISTS {PAST_OVERLAPS}")
    return world


def corrupt(world: World, corruption: Corruption) -> None:
    with connection.cursor() as cursor:
        changed = 0
        for statement in corruption.statements:
            cursor.execute(statement, world.jobs)
            changed += max(cursor.rowcount, 0)
    assert changed, "the corruption met no row"


def red(world: World, *, shown_max: int = 5) -> dict[str, Checked]:
    scope = Scope(now=world.time.read(), policies_unchanged=True)
    checked = check(INVARIANTS, scope=scope, shown_max=shown_max)
    return {one.invariant.id: one for one in checked if one.violations}


@pytest.mark.parametrize(
    "corruption", CORRUPTIONS, ids=[f"{one.breaks}: {one.done}" for one in CORRUPTIONS]
)
def test_a_corruption_is_named(unguarded: World, corruption: Corruption) -> None:
    corrupt(unguarded, corruption)
    found = red(unguarded)
    assert corruption.breaks in found
    told = found[corruption.breaks].shown
    assert told
    assert all(one.what and one.key and one.detail for one in told)


def test_every_invariant_has_a_corruption_that_breaks_it() -> None:
    assert {one.breaks for one in CORRUPTIONS} == {one.id for one in INVARIANTS}


def test_ids_and_sentences_do_not_repeat() -> None:
    assert len({one.id for one in INVARIANTS}) == len(INVARIANTS)
    assert len({one.sentence for one in INVARIANTS}) == len(INVARIANTS)


def test_few_violations_are_shown_and_all_are_counted(unguarded: World) -> None:
    corrupt(
        unguarded,
        Corruption("A1", "nobody did any of it", ("UPDATE leaseq_jobevent SET actor = ' '",)),
    )
    [found] = red(unguarded, shown_max=2).values()
    assert len(found.shown) == 2
    assert found.violations == found.rows > 50


def test_ended_leases_are_judged_by_policies_only_where_these_never_changed(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leaseq_servingpolicy SET lease_ttl = '3 s', renew_every = '1 s'")
    now = world.time.read()
    bounds = [one for one in INVARIANTS if one.id == "L4"]
    [live] = check(bounds, scope=Scope(now=now, policies_unchanged=False), shown_max=5)
    [both] = check(bounds, scope=Scope(now=now, policies_unchanged=True), shown_max=5)
    assert 0 < live.violations < both.violations
