"""A tick names a pass, and the one Celery task runs it (SPEC G1)."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from leaseq import tasks
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.errors import Misconfigured
from leaseq.models import ControlPass, WorkerNode
from leaseq.services import workers
from leaseq.services.workers import Registered, SlotFacts, WorkerFacts
from leaseq.vocabulary import WorkerState
from leaseq.worker import beat, bell, control
from leaseq.worker.control import ControlPlanePass
from leaseq.worker.presence import ProcessIdentity, own_identity, start_ticks_of


@pytest.mark.parametrize("name", sorted(control.PASSES))
def test_every_pass_runs_by_its_name_and_writes_that_it_finished(
    worker: Registered, name: str
) -> None:
    summary = control.run(name)
    assert summary.name == name
    assert summary.complete
    assert ControlPass.objects.filter(name=name).exists()


@pytest.mark.django_db
def test_an_unknown_pass_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(Misconfigured) as refusal:
        control.run("shedule")
    told = str(refusal.value)
    assert "'shedule'" in told
    assert all(name in told for name in control.PASSES)
    assert "leaseq schedule --reset" in told
    assert not ControlPass.objects.exists()


def test_every_pass_is_asked_for_by_a_tick_or_done_by_one_that_is() -> None:
    ticks = {tick.name for tick in beat.schedule()}
    assert set(control.PASSES) - ticks == {"publish"}
    assert ticks <= set(control.PASSES)


@pytest.mark.usefixtures("worker")
def test_a_pass_run_by_hand_takes_the_limits_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[PassLimits] = []

    def note(limits: PassLimits) -> PassSummary:
        given.append(limits)
        return PassSummary(name="settle")

    own = PassLimits(batch=7, seconds=7)
    known = {"settle": ControlPlanePass(run_once=note, limits=own)}
    monkeypatch.setattr(control, "PASSES", known)
    control.run("settle", limits=PassLimits(batch=1, seconds=2))
    control.run("settle")
    assert given == [PassLimits(batch=1, seconds=2), own]


@pytest.mark.parametrize("name", sorted(control.PASSES))
def test_every_pass_is_bounded_below_the_lease_that_its_delay_could_cost(name: str) -> None:
    limits = control.PASSES[name].limits
    assert 0 < limits.batch <= 1000
    assert 0 < limits.seconds <= 60


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the runs of a pass `settle` that does nothing."""
    runs: list[str] = []

    def note(limits: PassLimits) -> PassSummary:
        runs.append("settle")
        return PassSummary(name="settle")

    known = {"settle": ControlPlanePass(run_once=note, limits=PassLimits())}
    monkeypatch.setattr(control, "PASSES", known)
    return runs


@pytest.mark.parametrize(
    "newer",
    [{}, {"reason": "rung"}, {"tenant": 7, "shard": None}],
    ids=["as-sent-today", "one-more-word", "two-more-words"],
)
def test_the_task_runs_the_pass_also_for_a_sender_of_a_newer_version(
    db: None, asked: list[str], newer: dict[str, Any]
) -> None:
    done = tasks.run_pass.apply(kwargs={"name": "settle", **newer})
    assert done.successful()
    assert asked == ["settle"]


def test_the_task_has_the_name_that_rings_and_rows_use() -> None:
    assert tasks.run_pass.name == "leaseq.tasks.run_pass"
    assert beat.PASS_TASK == bell.PASS_TASK == tasks.run_pass.name
    assert tasks.run_pass.ignore_result


def test_the_task_goes_to_the_control_queue_also_when_sent_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: dict[str, Any] = {}

    def note(name: str, args: object, kwargs: object, **options: Any) -> None:
        sent.update(options, name=name)

    monkeypatch.setattr(tasks.run_pass.app, "send_task", note)
    tasks.run_pass.delay(name="settle")
    assert sent["name"] == beat.PASS_TASK
    assert sent["queue"] == "leaseq-control"


def register(process: ProcessIdentity) -> Registered:
    facts = WorkerFacts(
        name="gpu1@this",
        node=process.node,
        boot_id=process.boot_id,
        pid=process.pid,
        start_ticks=process.start_ticks,
        queues=["gpu"],
        pool="prefork",
    )
    return workers.register(facts, slots=[SlotFacts(unit="one")])


@pytest.mark.django_db
def test_the_sweep_of_this_machine_finds_a_killed_worker_and_spares_a_living_one(
    ahead: Callable[[timedelta], None],
) -> None:
    me = own_identity()
    living = register(me)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks_of(child.pid)
    assert ticks is not None
    killed = register(ProcessIdentity(me.node, me.boot_id, child.pid, ticks))
    child.kill()
    child.communicate(timeout=60)

    ahead(timedelta(seconds=3))
    assert control.run("expire").counts == {"death_not_proved": 1, "worker_dead": 1}
    states = dict(WorkerNode.objects.values_list("pk", "state"))
    assert states == {
        living.worker_id: WorkerState.LIVE,
        killed.worker_id: WorkerState.DEAD,
    }
