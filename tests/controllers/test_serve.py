"""One streamed request: each sign is recorded as it comes (SPEC E1-E3, F4, L5a)."""

from decimal import Decimal
from itertools import pairwise, repeat

import pytest

from leaseq.controllers import serve
from leaseq.errors import (
    CancelAsked,
    OwnershipLost,
    ProviderError,
    TransitionRefused,
)
from leaseq.models import Finding, Hold, Job
from leaseq.providers.base import Usage
from leaseq.services import attempts, holds
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq.testing.provider import (
    Cause,
    DropBeforeHeaders,
    Gate,
    Refuse,
    Reply,
    Script,
    ScriptedServer,
    Seen,
    Truncate,
)
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    HoldState,
    JobState,
    RequestState,
)
from tests.controllers.serving import infer, the_attempt, the_request, the_usage
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


# -- a reply without a fault -------------------------------------------------------------------


def test_the_whole_reply_comes_back_with_its_usage(
    server: ScriptedServer, sending: Claimed
) -> None:
    completion = infer(sending)
    assert (completion.text, completion.finish_reason) == ("Once upon a time", "stop")
    assert completion.usage == Usage(prompt_tokens=7, completion_tokens=4)
    assert server.submits == {f"leaseq-{sending.proof.attempt_id}": 1}
    assert the_usage() == {
        "prompt_token": (Decimal(7), Decimal("0.000007")),
        "completion_token": (Decimal(4), Decimal("0.000008")),
    }


def test_each_stage_has_its_own_time_in_order(server: ScriptedServer, sending: Claimed) -> None:
    infer(sending)
    request, attempt = the_request(), the_attempt()
    assert (request.state, request.model) == (RequestState.SUCCEEDED, "small")
    times = [request.prepared_at, request.accepted_at, request.started_at, request.ended_at]
    assert None not in times
    assert all(one < other for one, other in pairwise(times))  # type: ignore[operator]
    assert (attempt.accepted_at, attempt.started_at) == (request.accepted_at, request.started_at)
    assert (attempt.state, attempt.possibly_sent) == (AttemptState.OPEN, True)
    kinds = [event.kind for event in Job.objects.get().events.order_by("version")]
    assert kinds[-4:] == ["intent_recorded", "accepted", "started", "request_succeeded"]


def test_the_intent_stands_before_the_first_byte_and_a_job_runs_only_from_its_first_token(
    server: ScriptedServer, sending: Claimed
) -> None:
    headers, tokens = Gate(), Gate()
    server.script(Reply(headers_gate=headers, token_gate=tokens))
    states: list[tuple[str, bool, int]] = []
    first_token: list[bool] = []

    def look() -> bool:
        states.append((Job.objects.get().state, the_attempt().possibly_sent, len(server.log)))
        if states[-1][0] == JobState.DISPATCHING and server.submits:
            headers.open()
        if states[-1][0] == JobState.PROVIDER_ACCEPTED and not first_token:
            first_token.append(True)
            tokens.let_pass()
        if states[-1][0] == JobState.RUNNING:
            tokens.open()
        return False

    infer(sending, check=look)

    assert all(sent for _state, sent, seen in states if seen)
    seen = list(dict.fromkeys(state for state, _sent, _seen in states))
    assert seen == [JobState.DISPATCHING, JobState.PROVIDER_ACCEPTED, JobState.RUNNING]


def test_a_reply_of_no_tokens_has_started_by_its_end(
    server: ScriptedServer, sending: Claimed
) -> None:
    server.script(Reply(tokens=()))
    assert infer(sending).text == ""
    assert the_attempt().started_at is not None
    assert the_request().state == RequestState.SUCCEEDED


def test_usage_that_is_not_told_is_kept_unpriced_and_so_is_the_hold(
    server: ScriptedServer, sending: Claimed
) -> None:
    server.script(Reply(has_usage=False))
    assert infer(sending).usage is None
    assert the_usage() == {"unreported_request": (Decimal(1), None)}

    attempts.complete(sending.proof, result="done")
    holds.settle(sending.job_id)

    assert Hold.objects.get().state == HoldState.HELD
    assert Finding.objects.get(closed_at=None).job_id == sending.job_id


def test_progress_is_reported_while_tokens_come(
    server: ScriptedServer, sending: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REPORT_EVERY_SECONDS", 0)
    infer(sending)
    assert the_attempt().progress == {"tokens": 4, "usage": {"completion_token": 4}}
    assert the_attempt().progress_at is not None


# -- what may go wrong -------------------------------------------------------------------------


def test_a_refusal_before_the_headers_is_a_rejected_request(
    server: ScriptedServer, sending: Claimed
) -> None:
    server.script(Refuse(status=400))
    with pytest.raises(ProviderError) as refused:
        infer(sending)
    assert refused.value.outcome == "known_failed"
    request = the_request()
    assert (request.state, request.accepted_at) == (RequestState.REJECTED, None)
    assert "the request makes no sense" in request.detail
    assert Job.objects.get().state == JobState.DISPATCHING

    attempts.fail(sending.proof, cause=EndReason.PROVIDER_REJECTED, error="")
    assert (the_attempt().state, the_usage()) == (AttemptState.REJECTED, {})


@pytest.mark.parametrize(
    ("script", "state", "booked"),
    [
        (Truncate(), RequestState.RUNNING, {"completion_token": (Decimal(2), Decimal("0.000004"))}),
        (DropBeforeHeaders(), RequestState.UNKNOWN, {}),
    ],
    ids=["in the middle of the stream", "before the headers"],
)
def test_a_cut_is_no_failure_and_what_was_seen_of_its_usage_is_booked(
    server: ScriptedServer,
    sending: Claimed,
    script: Script,
    state: RequestState,
    booked: dict[str, tuple[Decimal, Decimal]],
) -> None:
    server.script(script)
    with pytest.raises(ProviderError) as cut:
        infer(sending)
    assert cut.value.outcome == "unknown"
    assert (the_request().state, the_request().ended_at) == (state, None)
    assert Job.objects.get().events.filter(kind="request_unknown").count() == 1

    attempts.fail(sending.proof, cause=EndReason.PROVIDER_UNKNOWN, error="")
    assert (the_attempt().state, the_request().state) == (AttemptState.LOST, RequestState.ABORTED)
    assert (the_attempt(2).state, Job.objects.get().state) == (AttemptState.OPEN, JobState.ADMITTED)
    assert the_usage() == booked


ENDLESS = Reply(tokens=repeat(" and"))


@pytest.mark.parametrize(
    ("error", "tokens_known"), [(OwnershipLost, False), (CancelAsked, True)],
    ids=["lost", "cancelled"],
)  # fmt: skip
def test_an_owner_that_must_stop_closes_the_connection_and_the_computation_ends(
    server: ScriptedServer,
    sending: Claimed,
    monkeypatch: pytest.MonkeyPatch,
    error: type[OwnershipLost],
    tokens_known: bool,
) -> None:
    monkeypatch.setattr(serve, "REPORT_EVERY_SECONDS", 1000)
    server.script(ENDLESS)

    def stop_once_it_runs() -> bool:
        if Job.objects.get().state == JobState.RUNNING:
            raise error("stop")
        return False

    with pytest.raises(error) as raised:
        infer(sending, check=stop_once_it_runs)
    assert type(raised.value) is error

    server.wait_for(Seen.DISCONNECTED)
    assert server.wait_for(Seen.COMPUTATION_ENDED).cause is Cause.DISCONNECTED
    assert (the_request().state, the_request().ended_at) == (RequestState.RUNNING, None)
    # Who lost the lease may record nothing; who was asked to stop says what it saw.
    assert bool(the_attempt().progress) is tokens_known


def test_a_check_that_only_says_stop_leaves_the_outcome_unknown(
    server: ScriptedServer, sending: Claimed
) -> None:
    server.script(ENDLESS)
    with pytest.raises(ProviderError, match="was stopped") as stopped:
        infer(sending, check=lambda: Job.objects.get().state == JobState.RUNNING)
    assert stopped.value.outcome == "unknown"
    server.wait_for(Seen.DISCONNECTED)


def test_an_attempt_that_is_lost_meanwhile_records_nothing_more(
    server: ScriptedServer, sending: Claimed, worker: Registered
) -> None:
    gate = Gate()
    server.script(Reply(token_gate=gate))
    after: dict[str, str] = {}

    def lose() -> bool:
        if not after and Job.objects.get().state == JobState.PROVIDER_ACCEPTED:
            attempts.lose_of_worker(
                sending.proof.attempt_id, worker_id=worker.worker_id, cause=EndReason.WORKER_LOST
            )
            after.update(photograph())
            gate.open()
        return False

    with pytest.raises(TransitionRefused):
        infer(sending, check=lose)
    assert photograph() == after
