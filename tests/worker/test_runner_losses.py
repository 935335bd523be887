"""Who lost the lease records nothing, and an outage of the database loses nothing (SPEC D3, D4)."""

from typing import Any

import pytest
from celery.exceptions import Ignore
from django.db import OperationalError

from leaseq.errors import (
    OwnershipLost,
)
from leaseq.models import Attempt, Job
from leaseq.owner.clock import boot_seconds
from leaseq.owner.deadline import Deadline
from leaseq.owner.guard import Belief
from leaseq.services import attempts, cancellation
from leaseq.vocabulary import (
    AttemptState,
    Certainty,
    EndReason,
    JobState,
)
from leaseq.worker import runner, seats
from leaseq.worker.handle import Lease
from tests.services.photograph import photograph
from tests.worker.deliveries import Task, deliver, raising, taken_away, the_attempt

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("seat")]


# -- who lost the lease records nothing --------------------------------------------------------


def test_a_late_result_of_a_lost_attempt_is_not_recorded(queued_job: Job) -> None:
    before: dict[str, str] = {}

    def act(lease: Lease) -> str:
        taken_away(lease)
        before.update(photograph())
        return "late"

    with pytest.raises(Ignore):
        deliver(act)
    assert photograph() == before
    assert (the_attempt().state, the_attempt().result) == (AttemptState.LOST, None)
    assert (the_attempt(2).state, Job.objects.get().state) == (AttemptState.OPEN, JobState.ADMITTED)


def test_a_late_error_of_a_lost_attempt_is_not_recorded(queued_job: Job) -> None:
    before: dict[str, str] = {}

    def act(lease: Lease) -> str:
        taken_away(lease)
        before.update(photograph())
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        deliver(act)
    assert photograph() == before


def test_an_attempt_cancelled_between_claim_and_begin_never_runs(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attempts.claim

    def claim_and_cancel(*args: Any, **kwargs: Any) -> attempts.Claimed:
        claimed = real(*args, **kwargs)
        cancellation.ask(claimed.job_id, actor="user:test", reason="no longer needed")
        return claimed

    monkeypatch.setattr(attempts, "claim", claim_and_cancel)
    task = Task()
    with pytest.raises(Ignore):
        runner.deliver(task, the_attempt().pk)
    assert task.calls == []
    assert (the_attempt().state, Job.objects.get().state) == (
        AttemptState.CANCELLED,
        JobState.CANCELLED,
    )


# -- a database that does not answer -----------------------------------------------------------


class Flaky:
    """A verb that fails so many times, before its work or after it: the answer is lost then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, times: int = 1) -> None:
        self._real = getattr(attempts, name)
        self.left = times
        self.calls = 0
        self.works_first = False
        self.closed = 0
        monkeypatch.setattr(attempts, name, self)
        monkeypatch.setattr(runner, "PAUSE_SECONDS", 0)
        # The connection of the test works, and holds what the test has made so far.
        monkeypatch.setattr(runner, "connection", lambda: self)

    def close(self) -> None:
        self.closed += 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            if self.works_first:
                self._real(*args, **kwargs)
            raise OperationalError("server closed the connection unexpectedly")
        return self._real(*args, **kwargs)


@pytest.mark.parametrize("works_first", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize("verb", ["begin", "complete"])
def test_an_outage_of_the_database_costs_no_attempt(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, verb: str, works_first: bool
) -> None:
    flaky = Flaky(monkeypatch, verb)
    flaky.works_first = works_first
    assert deliver(lambda _lease: "done") == "done"
    assert (flaky.calls, flaky.closed) == (2, 1)
    assert (the_attempt().state, the_attempt().result) == (AttemptState.COMPLETED, "done")
    kinds = [event.kind for event in queued_job.events.all()]
    assert [kinds.count(kind) for kind in ("accepted", "started", "completed")] == [1, 1, 1]
    assert Attempt.objects.count() == 1


@pytest.mark.parametrize("works_first", [False, True], ids=["not done", "done, answer lost"])
def test_an_outage_while_a_failure_is_recorded_changes_nothing_of_it(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, works_first: bool
) -> None:
    flaky = Flaky(monkeypatch, "fail")
    flaky.works_first = works_first
    with pytest.raises(ValueError, match="no"):
        deliver(raising(ValueError("no")))
    assert (the_attempt().state, the_attempt().reason) == (
        AttemptState.FAILED,
        EndReason.TASK_ERROR,
    )
    assert Attempt.objects.count() == 1


def test_progress_waits_for_the_database(queued_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    Flaky(monkeypatch, "progress")
    deliver(lambda lease: lease.progress(step=3))
    assert the_attempt().progress == {"step": 3}


def test_an_outage_longer_than_the_lease_ends_with_a_witness(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Flaky(monkeypatch, "complete", times=1000)
    witness = Flaky(monkeypatch, "lose_of_worker", times=2)

    def act(_lease: Lease) -> str:
        board = seats.board()
        (held,) = board.holding()
        gone = Belief(deadline=Deadline(boot_seconds()), doubt_at=0.0, certainty=Certainty.LOST)
        board.publish(held.index, held.proof, gone, renewals=0)
        return "late"

    with pytest.raises(Ignore):
        deliver(act)
    assert (complete.calls, witness.calls) == (1, 3)
    assert (the_attempt().state, the_attempt().reason, the_attempt().result) == (
        AttemptState.LOST,
        EndReason.HOLDER_STOPPED,
        None,
    )


def test_a_witness_whom_nobody_hears_gives_up(
    queued_job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Flaky(monkeypatch, "lose_of_worker", times=1000)
    monkeypatch.setattr(runner, "WITNESS_SECONDS", 0)
    with pytest.raises(Ignore):
        deliver(raising(OwnershipLost("gone")))
    assert witness.calls == 1
    assert "nobody heard" in caplog.text
    assert the_attempt().state == AttemptState.OPEN
