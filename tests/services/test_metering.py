"""Usage that a task measures itself, and writes that commit only while it owns (SPEC C4, F4)."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from leaseq.db import clock
from leaseq.errors import OwnershipLost, TransitionRefused
from leaseq.models import Attempt, Job, Lease, Price, UsageRecord
from leaseq.rules.renewal import Renewed
from leaseq.services import attempts, cancellation, leases, metering
from leaseq.services.attempts import Claimed
from leaseq.services.leases import Renewal
from leaseq.services.workers import Registered
from leaseq.vocabulary import AttemptState, EndReason, TransitionRefusal
from tests.races.conftest import DEADLINE_SECONDS, Session, until_waiting
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
TTL = timedelta(seconds=30)
SetAhead = Callable[[timedelta], None]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> SetAhead:
    """Let the authority's clock run ahead by a span, for the decisions of this process."""
    real = clock.read

    def run_ahead(span: timedelta) -> None:
        def read() -> datetime:
            return real() + span

        monkeypatch.setattr(clock, "read", read)

    return run_ahead


def lose(claimed: Claimed, worker: Registered) -> None:
    assert attempts.lose_of_worker(
        claimed.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
    )


def own_write(number: int = 0) -> None:
    """A write that the task means to stand or fall with its lease."""
    Price.objects.create(
        provider="task", unit=f"unit {number}", currency="EUR", amount=1,
        valid_from="2020-01-01T00:00Z",
    )  # fmt: skip


def own_writes() -> int:
    return Price.objects.filter(provider="task").count()


# -- record_usage ------------------------------------------------------------------------------


def test_what_is_recorded_adds_up_and_is_priced(begun: Claimed) -> None:
    Price.objects.create(
        provider="local", unit="second", currency="EUR", amount=Decimal("0.5"),
        valid_from="2020-01-01T00:00Z",
    )  # fmt: skip
    metering.record_usage(begun.proof, unit="second", quantity=Decimal("1.25"))
    metering.record_usage(begun.proof, unit="second", quantity=2)
    metering.record_usage(begun.proof, unit="page", quantity=7, model="m")

    lines = {line.unit: line for line in UsageRecord.objects.all()}
    assert (lines["second"].quantity, lines["second"].cost) == (Decimal("3.25"), Decimal("1.625"))
    assert (lines["page"].quantity, lines["page"].cost) == (Decimal(7), None)
    assert lines["page"].model == "m"
    told = Job.objects.get().events.filter(kind="usage_recorded").order_by("version")
    assert [(one.data["unit"], one.data["quantity"]) for one in told] == [
        ("second", "1.25"),
        ("second", "2"),
        ("page", "7"),
    ]


def test_usage_may_be_recorded_before_the_task_begins_and_after_a_cancel_request(
    claimed: Claimed,
) -> None:
    metering.record_usage(claimed.proof, unit="page", quantity=1)
    attempts.begin(claimed.proof)
    cancellation.ask(claimed.job_id, actor="user:test", reason="no longer needed")
    metering.record_usage(claimed.proof, unit="page", quantity=2)
    assert UsageRecord.objects.get().quantity == 3


@pytest.mark.parametrize(
    "quantity",
    [
        Decimal(-1), Decimal("NaN"), Decimal("Infinity"), Decimal(10) ** 14, Decimal("0.0000001"),
        True, None, "many",
    ],
    ids=str,
)  # fmt: skip
def test_a_quantity_that_cannot_be_kept_as_it_is_is_refused(begun: Claimed, quantity: Any) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        metering.record_usage(begun.proof, unit="page", quantity=quantity)
    assert refused.value.reason is TransitionRefusal.BAD_REPORT
    assert photograph() == before


@pytest.mark.parametrize("unit", ["", "x" * 51, "a\nb"], ids=["empty", "long", "two lines"])
def test_a_unit_that_cannot_be_kept_is_refused(begun: Claimed, unit: str) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        metering.record_usage(begun.proof, unit=unit, quantity=1)
    assert refused.value.reason is TransitionRefusal.BAD_REPORT
    assert photograph() == before


def test_who_lost_the_attempt_records_no_usage(begun: Claimed, worker: Registered) -> None:
    lose(begun, worker)
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        metering.record_usage(begun.proof, unit="page", quantity=1)
    assert refused.value.reason is TransitionRefusal.STALE_OWNER
    assert photograph() == before


def test_who_held_the_lease_too_long_records_no_usage(begun: Claimed, ahead: SetAhead) -> None:
    before = photograph()
    ahead(TTL)
    with pytest.raises(TransitionRefused) as refused:
        metering.record_usage(begun.proof, unit="page", quantity=1)
    assert refused.value.reason is TransitionRefusal.LEASE_EXPIRED
    assert photograph() == before


# -- fenced ------------------------------------------------------------------------------------


def test_an_owners_writes_are_committed(begun: Claimed) -> None:
    before = photograph("leaseq_job"), photograph("leaseq_lease")
    with metering.fenced(begun.proof):
        own_write()
    assert own_writes() == 1
    assert (photograph("leaseq_job"), photograph("leaseq_lease")) == before


def test_an_owners_own_error_rolls_its_writes_back(begun: Claimed) -> None:
    def write_and_fail() -> None:
        with metering.fenced(begun.proof):
            own_write()
            raise ValueError("the task's own error")

    with pytest.raises(ValueError, match="own error"):
        write_and_fail()
    assert own_writes() == 0


def test_a_fenced_block_may_report_and_meter(begun: Claimed) -> None:
    with metering.fenced(begun.proof):
        attempts.progress(begun.proof, report={"step": 1})
        metering.record_usage(begun.proof, unit="page", quantity=1)
    assert Attempt.objects.get().progress == {"step": 1}
    assert UsageRecord.objects.get().quantity == 1


def test_a_lease_that_runs_out_before_the_end_takes_the_writes_along_ten_times_of_ten(
    begun: Claimed, ahead: SetAhead
) -> None:
    def write_too_long(number: int) -> None:
        with metering.fenced(begun.proof):
            own_write(number)
            assert own_writes() == 1
            ahead(TTL)

    for number in range(10):
        ahead(timedelta(0))
        with pytest.raises(OwnershipLost, match="not committed: lease_expired") as lost:
            write_too_long(number)
        assert lost.value.ids["attempt_id"] == begun.proof.attempt_id
        assert own_writes() == 0


def ended(claimed: Claimed, worker: Registered, ahead: SetAhead) -> None:
    lose(claimed, worker)


def completed(claimed: Claimed, worker: Registered, ahead: SetAhead) -> None:
    attempts.complete(claimed.proof, result="done")


def too_late(claimed: Claimed, worker: Registered, ahead: SetAhead) -> None:
    ahead(TTL)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (ended, TransitionRefusal.LEASE_ENDED),
        (completed, TransitionRefusal.LEASE_ENDED),
        (too_late, TransitionRefusal.LEASE_EXPIRED),
    ],
    ids=["lost", "completed", "expired"],
)
def test_who_does_not_own_the_lease_does_not_get_into_the_block(
    begun: Claimed,
    worker: Registered,
    ahead: SetAhead,
    happens: Callable[[Claimed, Registered, SetAhead], None],
    reason: TransitionRefusal,
) -> None:
    happens(begun, worker, ahead)
    with pytest.raises(OwnershipLost, match=f"not committed: {reason}"):
        metering.fenced(begun.proof).__enter__()


# -- fenced, and others at once ----------------------------------------------------------------


@pytest.fixture
def other(transactional_db: None) -> Iterator[Session]:
    """Another session at the database."""
    session = Session()
    yield session
    session.close()


@pytest.fixture
def third(transactional_db: None) -> Iterator[Session]:
    """And one more."""
    session = Session()
    yield session
    session.close()


@pytest.mark.race
def test_renewals_go_on_while_a_block_is_open(other: Session, begun: Claimed) -> None:
    """fenced: share(job, attempt) ........................ commit
    renewal:                          renew, commit
    """
    before = Lease.objects.get(pk=begun.proof.lease_id).version
    with metering.fenced(begun.proof):
        own_write()
        for _ in range(3):
            (answer,) = other.do(lambda: leases.renew_many([Renewal(proof=begun.proof)]))
            assert isinstance(answer.verdict, Renewed)
    assert own_writes() == 1
    assert Lease.objects.get(pk=begun.proof.lease_id).version == before + 3


@pytest.mark.race
def test_a_sweep_passes_by_while_a_block_is_open(
    other: Session, begun: Claimed, ahead: SetAhead
) -> None:
    """fenced: share(job, attempt) ..................... commit
    sweep:                            skips the job               expires it
    """
    with metering.fenced(begun.proof):
        own_write()
        ahead(TTL)
        assert other.do(lambda: leases.expire(begun.job_id, actor="sweep")) is None
        ahead(timedelta(0))
    assert own_writes() == 1
    assert Attempt.objects.get().state == AttemptState.OPEN
    ahead(TTL)
    assert other.do(lambda: leases.expire(begun.job_id, actor="sweep")) is not None
    assert Attempt.objects.get(number=1).state == AttemptState.LOST


@pytest.mark.race
def test_whoever_ends_the_attempt_waits_for_an_open_block(
    other: Session, third: Session, begun: Claimed, worker: Registered
) -> None:
    """fenced: share(job, attempt) ........................ commit
    loss:                             waits for the job           ends the attempt
    """
    block = metering.fenced(begun.proof)
    other.do(block.__enter__)
    other.do(own_write)
    loss = third.start(lambda: lose(begun, worker))
    until_waiting()
    assert not loss.done()
    other.do(lambda: block.__exit__(None, None, None))
    loss.result(DEADLINE_SECONDS)
    assert own_writes() == 1
    assert Attempt.objects.get(number=1).state == AttemptState.LOST
