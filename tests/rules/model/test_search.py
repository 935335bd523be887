"""The real rules break nothing in any reachable world, and every planted wrong one is found."""

from collections.abc import Callable

import pytest

from .planted import CONNECTED, REMOTE, Planted
from .search import search
from .world import BEGIN, Rules, Setting

AT_A_PROVIDER = Setting(horizon=BEGIN + 3, ends_with_connection=False)
IN_A_WORKER = Setting(horizon=BEGIN + 2, ends_with_connection=True)
TRACE_MAX = 16

# What an act is worth only if it happened: a search that never met it proved nothing.
EVERYWHERE = {
    "the clock ticks",
    "reserve and publish",
    "cancel at once",
    "ask to cancel",
    "sweep an expired lease",
    "sweep an expired reservation",
    "monitoring ends",
    "claim",
    "renew",
    "renew, and the answer is lost",
    "hear of an earlier renewal",
    "record the intent",
    "send",
    "the owner records acceptance",
    "the owner records the start",
    "the owner completes",
    "the owner dies",
    "the provider finishes",
    "settle",
    "release",
}
ONLY_AT_A_PROVIDER = {
    "the owner hands over to the controller",
    "a callback tells acceptance",
    "a callback tells the start",
    "a callback tells completion",
    "a tombstone is acknowledged",
    "send, refused by the tombstone",
    "the queue age is spent",
    "the hold expires",
}
ONLY_IN_A_WORKER = {"the owner gives up"}


@pytest.mark.parametrize(
    ("setting", "acts", "worlds_min"),
    [
        (AT_A_PROVIDER, EVERYWHERE | ONLY_AT_A_PROVIDER, 20_000),
        (IN_A_WORKER, EVERYWHERE | ONLY_IN_A_WORKER, 30_000),
    ],
    ids=["at-a-provider", "in-a-worker"],
)
def test_the_rules_break_no_invariant_in_any_reachable_world(
    setting: Setting,
    acts: set[str],
    worlds_min: int,
    record_property: Callable[[str, object], None],
) -> None:
    found = search(Rules(), setting)
    record_property("worlds", found.worlds)
    assert found.broken == (), found.trace
    assert acts <= found.acts
    assert found.worlds >= worlds_min


@pytest.mark.parametrize("planted", REMOTE, ids=[planted.name for planted in REMOTE])
def test_a_wrong_rule_at_a_provider_is_found_by_a_short_trace(planted: Planted) -> None:
    _is_found(planted, AT_A_PROVIDER)


@pytest.mark.parametrize("planted", CONNECTED, ids=[planted.name for planted in CONNECTED])
def test_a_wrong_rule_in_a_worker_is_found_by_a_short_trace(planted: Planted) -> None:
    _is_found(planted, IN_A_WORKER)


def _is_found(planted: Planted, setting: Setting) -> None:
    found = search(planted.rules, setting)
    assert found.broken, f"{planted.name}: not found in {found.worlds} worlds"
    ids = {fault.split()[0] for fault in found.broken}
    assert planted.breaks in ids, (found.broken, found.trace)
    assert len(found.trace) <= TRACE_MAX, found.trace
