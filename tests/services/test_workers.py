from datetime import timedelta
from uuid import UUID

import pytest

from leaseq.db import clock
from leaseq.errors import TransitionRefused
from leaseq.models import Lease, Slot, WorkerNode
from leaseq.queries import leases as lease_queries
from leaseq.services import workers
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered, SlotFacts, WorkerFacts
from leaseq.vocabulary import LeaseStatus, TransitionRefusal, WorkerState
from tests.conftest import register_worker
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
FACTS = WorkerFacts(
    name="gpu1@here",
    node="here",
    boot_id="boot",
    pid=4711,
    start_ticks=1,
    queues=["gpu", "fast"],
    pool="prefork",
)


def test_a_worker_offers_its_slots_in_the_order_it_names_them() -> None:
    units = [SlotFacts(unit="b"), SlotFacts(unit="a"), SlotFacts(unit="a", share=1)]

    registered = workers.register(FACTS, slots=units)

    rows = Slot.objects.in_bulk(registered.slot_ids)
    assert [(rows[one].unit, rows[one].share) for one in registered.slot_ids] == [
        ("b", 0),
        ("a", 0),
        ("a", 1),
    ]
    assert {(one.worker_id, tuple(one.queues)) for one in rows.values()} == {
        (registered.worker_id, ("gpu", "fast"))
    }
    worker = WorkerNode.objects.get()
    assert (worker.state, worker.started_at) == (WorkerState.LIVE, worker.seen_at)


def test_a_restarted_worker_is_another_owner_of_the_same_slots(worker: Registered) -> None:
    let_pass(timedelta(seconds=5))
    seen_first = Slot.objects.values_list("first_seen_at", flat=True)[0]

    again = register_worker("gpu1@here", slots=2)

    assert again.slot_ids == worker.slot_ids
    assert again.worker_id != worker.worker_id
    assert set(Slot.objects.values_list("worker_id", "first_seen_at")) == {
        (again.worker_id, seen_first)
    }
    assert WorkerNode.objects.count() == 2


def test_the_predecessors_are_who_last_offered_these_slots_and_are_not_known_to_be_over(
    worker: Registered,
) -> None:
    slots = [SlotFacts(unit="gpu1@here:0"), SlotFacts(unit="gpu1@here:1")]
    register_worker("other@here", slots=1)
    found = workers.predecessors(FACTS, slots=slots)
    assert [one.pk for one in found] == [worker.worker_id]

    workers.declare_dead(worker.worker_id)

    assert workers.predecessors(FACTS, slots=slots) == []


def test_a_worker_that_is_seen_serves_its_queues_and_a_silent_one_does_not(
    worker: Registered,
) -> None:
    let_pass(timedelta(seconds=31))
    assert lease_queries.served_queues(now=clock.read()) == []
    assert workers.seen(worker.worker_id) is WorkerState.LIVE
    assert lease_queries.served_queues(now=clock.read()) == ["gpu"]


def test_being_seen_grants_no_power_over_a_lease(begun: Claimed, worker: Registered) -> None:
    """PROMISES Q7."""
    before = photograph("leaseq_lease")
    workers.seen(worker.worker_id)
    assert photograph("leaseq_lease") == before


def test_a_draining_worker_is_told_so_and_is_asked_once(worker: Registered) -> None:
    assert workers.drain(worker.worker_id)
    assert not workers.drain(worker.worker_id)
    assert workers.seen(worker.worker_id) is WorkerState.DRAINING
    assert lease_queries.served_queues(now=clock.read()) == []


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        pytest.param(workers.retire, WorkerState.STOPPED, id="retired"),
        pytest.param(workers.declare_dead, WorkerState.DEAD, id="dead"),
    ],
)
def test_a_worker_that_is_over_gives_its_slots_back_once_and_must_register_anew(
    begun: Claimed, worker: Registered, verb: object, state: WorkerState
) -> None:
    assert callable(verb)
    verb(worker.worker_id)
    before = photograph()
    verb(worker.worker_id)

    assert photograph() == before
    row = WorkerNode.objects.get()
    assert (row.state, row.stopped_at is None) == (state, False)
    assert set(Slot.objects.values_list("worker_id", flat=True)) == {None}
    # Its lease is a matter of its own: it is swept, not forgotten.
    assert Lease.objects.get().status == LeaseStatus.ACTIVE
    with pytest.raises(TransitionRefused) as refused:
        workers.seen(worker.worker_id)
    assert refused.value.reason is TransitionRefusal.WORKER_NOT_LIVE


def test_the_end_of_an_incarnation_takes_nothing_from_its_successor(worker: Registered) -> None:
    again = register_worker("gpu1@here", slots=2, pid=2)
    workers.retire(worker.worker_id)
    assert set(Slot.objects.values_list("worker_id", flat=True)) == {again.worker_id}


def test_an_unknown_worker_is_not_seen(db: None) -> None:
    with pytest.raises(TransitionRefused):
        workers.seen(UUID(int=1))


def test_what_a_worker_claimed_and_did_not_end_is_known(begun: Claimed, worker: Registered) -> None:
    assert workers.unclosed_attempts(worker.worker_id) == [begun.proof.attempt_id]
    other = register_worker("gpu2@here", slots=1)
    assert workers.unclosed_attempts(other.worker_id) == []
