"""Nothing is sent where the gate is shut, and nothing is recorded twice (SPEC L4, D3)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from leaseq.errors import (
    Misconfigured,
    OwnershipLost,
    ProviderError,
    TransitionRefused,
)
from leaseq.models import Hold, Job
from leaseq.services import attempts, cancellation
from leaseq.services.attempts import Claimed
from leaseq.testing.provider import (
    Refuse,
    ScriptedServer,
)
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    RequestState,
    TransitionRefusal,
)
from tests.controllers.serving import infer, the_attempt, the_request, the_usage
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


# -- the gate ----------------------------------------------------------------------------------


def expired(claimed: Claimed) -> None:
    let_pass(timedelta(seconds=30))


def cancel_asked(claimed: Claimed) -> None:
    cancellation.ask(claimed.job_id, actor="user:test", reason="no longer needed")


def hold_released(claimed: Claimed) -> None:
    hold = Hold.objects.get()
    Hold.objects.update(
        state="released", held=0, released=hold.amount, closed_at=hold.created_at,
        reason="no_usage",
    )  # fmt: skip


def lost(claimed: Claimed) -> None:
    worker_id = the_attempt().worker_id
    assert worker_id is not None
    attempts.lose_of_worker(
        claimed.proof.attempt_id, worker_id=worker_id, cause=EndReason.WORKER_LOST
    )


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        pytest.param(expired, TransitionRefusal.LEASE_EXPIRED, id="the lease has expired"),
        pytest.param(cancel_asked, TransitionRefusal.CANCEL_ASKED, id="a cancellation was asked"),
        pytest.param(hold_released, TransitionRefusal.HOLD_NOT_OPEN, id="the hold is released"),
        pytest.param(lost, TransitionRefusal.STALE_OWNER, id="the attempt was lost"),
    ],
)
def test_nothing_is_sent_where_the_gate_is_shut(
    server: ScriptedServer,
    sending: Claimed,
    happens: Callable[[Claimed], None],
    reason: TransitionRefusal,
) -> None:
    happens(sending)
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        infer(sending)
    assert refused.value.reason is reason
    assert (photograph(), server.log) == (before, ())


def test_an_attempt_sends_once(server: ScriptedServer, sending: Claimed) -> None:
    infer(sending)
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        infer(sending)
    assert refused.value.reason is TransitionRefusal.ALREADY_DISPATCHED
    assert photograph() == before
    assert server.submits.total() == 1


def test_an_owner_that_must_stop_before_it_sends_sends_nothing(
    server: ScriptedServer, sending: Claimed
) -> None:
    def stop() -> bool:
        raise OwnershipLost("the lease is gone")

    before = photograph()
    with pytest.raises(OwnershipLost):
        infer(sending, check=stop)
    assert (photograph(), server.log) == (before, ())


def test_a_payload_that_cannot_be_carried_leaves_no_intent(
    server: ScriptedServer, sending: Claimed
) -> None:
    before = photograph()
    with pytest.raises(ProviderError) as refused:
        infer(sending, payload={"messages": [], "stream": False})
    assert refused.value.outcome == "known_failed"
    assert (photograph(), server.log) == (before, ())


def test_a_provider_that_is_not_configured_is_named_with_those_that_are(
    server: ScriptedServer, sending: Claimed
) -> None:
    with pytest.raises(Misconfigured, match=r"no 'local'; it has private"):
        infer(sending, provider_name="local")
    assert server.log == ()


# -- answers of the database that were lost ----------------------------------------------------


def test_a_record_that_is_written_again_counts_once(
    server: ScriptedServer, sending: Claimed
) -> None:
    def twice_once_sent(act: Callable[[], Any]) -> Any:
        first = act()
        return act() if server.submits else first

    assert infer(sending, persist=twice_once_sent).text == "Once upon a time"

    kinds = [event.kind for event in Job.objects.get().events.order_by("version")]
    assert kinds[-4:] == ["intent_recorded", "accepted", "started", "request_succeeded"]
    assert the_usage()["completion_token"][0] == 4
    attempts.complete(sending.proof, result="done")


def test_a_refusal_that_is_written_again_counts_once(
    server: ScriptedServer, sending: Claimed
) -> None:
    server.script(Refuse())

    def twice_once_sent(act: Callable[[], Any]) -> Any:
        first = act()
        return act() if server.submits else first

    with pytest.raises(ProviderError) as refused:
        infer(sending, persist=twice_once_sent)
    assert refused.value.outcome == "known_failed"
    assert the_request().state == RequestState.REJECTED


def test_an_intent_whose_commit_had_no_answer_is_not_sent(
    server: ScriptedServer, sending: Claimed
) -> None:
    def twice(act: Callable[[], Any]) -> Any:
        act()
        return act()

    with pytest.raises(ProviderError, match="nothing was sent") as unsure:
        infer(sending, persist=twice)
    assert (unsure.value.outcome, server.log) == ("unknown", ())
    attempts.fail(sending.proof, cause=EndReason.PROVIDER_UNKNOWN, error="")
    assert (the_attempt().state, Job.objects.get().state) == (AttemptState.LOST, JobState.ADMITTED)
