"""Sweep: the dead's attempts, leases and waits past their time, unknown outcomes, holds (B9)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, assert_never
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from leaseq.controllers import pages
from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.db import clock
from leaseq.models import Attempt, Finding, Hold, Lease, WorkerNode
from leaseq.rules.outcome import Ended, LossVerdict, NextAttempt, OutcomeUnknown
from leaseq.services import attempts, holds, leases, scheduling, workers
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    HoldState,
    LeaseStatus,
    WorkerState,
)

NAME = "expire"
ACTOR = "control:expire"
NOTHING_DUE = "nothing_due"
# A worker beats more often than this, so whoever was seen since is not worth a look.
SILENT_FOR = timedelta(seconds=2)


class Process(Protocol):
    """What names one incarnation of a process."""

    node: str
    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What this process can testify: on which machine it is, and who there is provably gone.

    `is_dead` says None where it cannot know, and never guesses (SPEC L5a).
    """

    node: str
    is_dead: Callable[[Process], bool | None]


def run_once(limits: PassLimits, *, witness: Witness) -> PassSummary:
    """Sweep once; each of the six parts gets its share of the time (SPEC B9, D7).

    Whoever gets something back is rung by the services as they commit. A worker whose death
    cannot be proved stays as it is: it owns nothing but its leases, and those run out.
    """
    run = PassRun(NAME, limits=limits)
    parts: list[Callable[[], None]] = [
        lambda: _bury(run, witness),
        lambda: _take_from_the_dead(run),
        lambda: _end_leases(run),
        lambda: _resolve_unknown(run),
        lambda: _end_waits(run),
        lambda: _meet_holds(run),
    ]
    for done, part in enumerate(parts):
        run.share(parts=len(parts) - done)
        part()
    return run.finish()


def _bury(run: PassRun, witness: Witness) -> None:
    """Declare dead each silent worker of this machine whose process is gone by evidence."""

    def silent() -> "QuerySet[Any]":
        return WorkerNode.objects.filter(
            node=witness.node,
            state__in=workers.PRESENT,
            seen_at__lte=clock.read() - SILENT_FOR,
        )

    def look(worker_id: UUID) -> str:
        if not witness.is_dead(WorkerNode.objects.get(pk=worker_id)):
            return "death_not_proved"
        workers.declare_dead(worker_id)
        return "worker_dead"

    page = pages.by_id(silent, names="pk", batch=run.limits.batch)
    run.walk("workers", page=page, act=look)


def _take_from_the_dead(run: PassRun) -> None:
    """Lose what dead workers hold, whoever declared them dead: no lease needs to run out."""

    def held() -> "QuerySet[Any]":
        return Lease.objects.filter(status=LeaseStatus.ACTIVE, worker__state=WorkerState.DEAD)

    def lose(attempt_id: UUID) -> str:
        worker_id = Attempt.objects.values_list("worker_id", flat=True).get(pk=attempt_id)
        if worker_id is None:
            return NOTHING_DUE
        return _word(
            attempts.lose_of_worker(attempt_id, worker_id=worker_id, cause=EndReason.WORKER_LOST)
        )

    page = pages.by_id(held, names="attempt_id", batch=run.limits.batch)
    run.walk("dead", page=page, act=lose)


def _end_leases(run: PassRun) -> None:
    def due() -> "QuerySet[Any]":
        return Lease.objects.filter(status=LeaseStatus.ACTIVE, expires_at__lte=clock.read())

    page = pages.by_id(due, names="job_id", batch=run.limits.batch)
    run.walk("leases", page=page, act=lambda one: _word(leases.expire(one, actor=ACTOR)))


def _resolve_unknown(run: PassRun) -> None:
    def due() -> "QuerySet[Any]":
        return Attempt.objects.filter(
            Q(worker__isnull=True)
            | Q(worker__state__in=leases.HOLDER_OVER)
            | Q(unknown_since__lte=clock.read() - F("job__policy__uncertain_max")),
            state=AttemptState.OUTCOME_UNKNOWN,
        )

    page = pages.by_id(due, names="job_id", batch=run.limits.batch)
    run.walk("unknown", page=page, act=lambda one: _word(leases.resolve_unknown(one, actor=ACTOR)))


def _end_waits(run: PassRun) -> None:
    def end() -> None:
        while ended := scheduling.expire_waiting(limit=run.limits.batch):
            run.count("wait_ended", times=ended)
            if not run.has_time():
                run.stop_short()
                return

    run.guarded(end, of="jobs past their queue deadline")


def _meet_holds(run: PassRun) -> None:
    """Look at holds past their time; one that is kept while its job runs is looked at once."""

    def due() -> "QuerySet[Any]":
        told = Finding.objects.filter(
            kind=holds.PAST_ITS_TIME, job=OuterRef("job"), closed_at__isnull=True
        )
        return Hold.objects.filter(
            Q(job__waiting_since__isnull=False) | ~Exists(told),
            state=HoldState.HELD,
            expires_at__lte=clock.read(),
            job__ended_at__isnull=True,
        )

    page = pages.by_id(due, names="job_id", batch=run.limits.batch)
    run.walk("holds", page=page, act=holds.meet_expiry)


def _word(verdict: LossVerdict | None) -> str:
    match verdict:
        case None:
            return NOTHING_DUE
        case NextAttempt():
            return "readmitted"
        case OutcomeUnknown():
            return "outcome_unknown"
        case Ended(job_state=state):
            return f"job_{state}"
        case _:
            assert_never(verdict)
