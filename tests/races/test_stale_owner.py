from collections.abc import Callable
from datetime import timedelta

import pytest

from leaseq.errors import TransitionRefused
from leaseq.models import Attempt, Lease
from leaseq.rules.renewal import Refused
from leaseq.services import attempts, leases, workers
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import EndReason, LeaseStatus, RenewalRefusal
from tests.conftest import register_worker
from tests.services import stages
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = [pytest.mark.race, pytest.mark.django_db]
SECOND = timedelta(seconds=1)


@pytest.fixture
def successor(begun: Claimed, worker: Registered) -> Claimed:
    """The job at another worker, after the first was silent for a whole ttl.

    first   begin ......... (silent beyond its expiry) ............... acts again
    sweep                                              expire
    second                                                     claim, begin
    """
    let_pass(30 * SECOND)
    leases.expire(begun.job_id, actor="control:expire")
    let_pass(2 * SECOND)
    workers.seen(worker.worker_id)
    (queued,) = stages.queue_up()
    return stages.run(queued, register_worker("gpu2@here", slots=1, pid=2))


ACTS: list[tuple[str, Callable[[Claimed], object]]] = [
    ("begin", lambda one: attempts.begin(one.proof)),
    ("progress", lambda one: attempts.progress(one.proof, report={"done": 9})),
    ("complete", lambda one: attempts.complete(one.proof, result="stale")),
    ("fail", lambda one: attempts.fail(one.proof, cause=EndReason.TASK_ERROR, error="stale")),
    ("give back", lambda one: attempts.fail(one.proof, cause=EndReason.TASK_RETRY, error="")),
]


@pytest.mark.parametrize("act", [pytest.param(act, id=name) for name, act in ACTS])
def test_a_stale_owner_writes_nothing_onto_its_successor(
    begun: Claimed, successor: Claimed, act: Callable[[Claimed], object]
) -> None:
    """Cases D3 and D5: every write is fenced, and the new owner's rows stay to the byte."""
    before = photograph()

    with pytest.raises(TransitionRefused):
        act(begun)

    assert photograph() == before
    live = Lease.objects.get(status=LeaseStatus.ACTIVE)
    assert live.pk == successor.proof.lease_id


def test_a_stale_owner_renews_neither_its_lease_nor_its_successors(
    begun: Claimed, successor: Claimed
) -> None:
    """Case E2: the expiry and owner of the new lease stay to the microsecond."""
    before = photograph()

    (answer,) = leases.renew_many([Renewal(proof=begun.proof)])

    assert isinstance(answer.verdict, Refused)
    assert answer.verdict.reason is RenewalRefusal.LEASE_ENDED
    assert answer.left == timedelta(0)
    assert photograph() == before


def test_a_stale_owner_cannot_lose_its_successors_attempt(
    begun: Claimed, successor: Claimed, worker: Registered
) -> None:
    before = photograph()
    for attempt_id in Attempt.objects.values_list("pk", flat=True):
        lost = attempts.lose_of_worker(
            attempt_id, worker_id=worker.worker_id, cause=EndReason.HOLDER_STOPPED
        )
        assert lost is None
    assert photograph() == before


@pytest.mark.parametrize("beyond", [timedelta(0), timedelta(milliseconds=1)], ids=str)
def test_an_expired_lease_is_extended_for_nobody_though_nobody_took_its_place(
    begun: Claimed, beyond: timedelta
) -> None:
    """Case E1: right owner, right token, too late by the authority's clock."""
    let_pass(30 * SECOND + beyond)
    before = photograph()

    (answer,) = leases.renew_many([Renewal(proof=begun.proof)])

    assert isinstance(answer.verdict, Refused)
    assert answer.verdict.reason is RenewalRefusal.LEASE_EXPIRED
    for _, act in ACTS:
        with pytest.raises(TransitionRefused, match="lease_expired"):
            act(begun)
    assert photograph() == before
