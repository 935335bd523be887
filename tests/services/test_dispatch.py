import hashlib
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from leaseq.errors import TransitionRefused
from leaseq.models import Attempt, Hold, Job, JobEvent, ProviderRequest, UsageRecord
from leaseq.services import attempts, cancellation, dispatch
from leaseq.services.attempts import Claimed
from leaseq.services.dispatch import Intent, Target
from leaseq.vocabulary import (
    AttemptState,
    EndReason,
    JobState,
    RequestState,
    TransitionRefusal,
)
from tests.services.aging import let_pass
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
TARGET = Target(provider="private", endpoint="http://model", model="m", ends_with_connection=True)


@pytest.fixture
def intent(claimed: Claimed) -> Intent:
    return dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")


def test_the_intent_stands_before_anything_is_sent(claimed: Claimed) -> None:
    intent = dispatch.record_intent(claimed.proof, target=TARGET, body=b'{"a":1}')

    request, attempt = ProviderRequest.objects.get(), Attempt.objects.get()
    assert (request.pk, request.state) == (intent.request_id, RequestState.PREPARED)
    assert request.idempotency_key == intent.idempotency_key == f"leaseq-{attempt.pk}"
    assert request.body_digest == hashlib.sha256(b'{"a":1}').hexdigest()
    assert (request.endpoint, request.fence) == ("http://model", claimed.proof.fence.counter)
    assert attempt.possibly_sent
    assert Job.objects.get().state == JobState.DISPATCHING


def sent_before(claimed: Claimed) -> None:
    dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")


def cancel_asked(claimed: Claimed) -> None:
    cancellation.ask(claimed.job_id, actor="user:test", reason="no longer needed")


def expired(claimed: Claimed) -> None:
    let_pass(30 * SECOND)


def hold_expired(claimed: Claimed) -> None:
    hold = Hold.objects.get()
    Hold.objects.update(
        state="expired", held=0, released=hold.amount, closed_at=hold.created_at,
        reason="hold_expired",
    )  # fmt: skip


def begun(claimed: Claimed) -> None:
    attempts.begin(claimed.proof)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        pytest.param(sent_before, TransitionRefusal.ALREADY_DISPATCHED, id="it was sent before"),
        pytest.param(cancel_asked, TransitionRefusal.CANCEL_ASKED, id="a cancellation was asked"),
        pytest.param(expired, TransitionRefusal.LEASE_EXPIRED, id="the lease has expired"),
        pytest.param(hold_expired, TransitionRefusal.HOLD_NOT_OPEN, id="the hold is closed"),
        pytest.param(begun, TransitionRefusal.NOT_A_LEGAL_MOVE, id="the task was the compute"),
    ],
)
def test_the_gate_lets_nothing_through(
    claimed: Claimed, happens: Callable[[Claimed], None], reason: TransitionRefusal
) -> None:
    happens(claimed)
    before = photograph()

    with pytest.raises(TransitionRefused) as refused:
        dispatch.record_intent(claimed.proof, target=TARGET, body=b"{}")

    assert refused.value.reason is reason
    assert photograph() == before


def test_accepted_is_not_running_and_each_has_its_own_time(intent: Intent) -> None:
    dispatch.record_accepted(intent, provider_request_id="r-1")
    request, attempt = ProviderRequest.objects.get(), Attempt.objects.get()
    assert (request.state, request.provider_request_id) == (RequestState.ACCEPTED, "r-1")
    assert (attempt.accepted_at, attempt.started_at) == (request.accepted_at, None)
    assert Job.objects.get().state == JobState.PROVIDER_ACCEPTED

    dispatch.record_started(intent)
    request, attempt = ProviderRequest.objects.get(), Attempt.objects.get()
    assert request.state == RequestState.RUNNING
    assert attempt.started_at == request.started_at is not None
    assert Job.objects.get().state == JobState.RUNNING


def test_nothing_starts_before_it_was_accepted(intent: Intent) -> None:
    before = photograph()
    with pytest.raises(TransitionRefused):
        dispatch.record_started(intent)
    assert photograph() == before


def test_the_end_books_usage_at_the_price_of_now(intent: Intent, prices: Any) -> None:
    dispatch.record_accepted(intent, provider_request_id=None)
    dispatch.record_started(intent)

    dispatch.record_ended(
        intent,
        state=RequestState.SUCCEEDED,
        detail="stop",
        quantities={"prompt_token": Decimal(1000), "joule": Decimal(5)},
    )

    assert ProviderRequest.objects.get().state == RequestState.SUCCEEDED
    lines = {one.unit: one for one in UsageRecord.objects.all()}
    assert lines["prompt_token"].cost == Decimal("0.001")
    assert (lines["joule"].unit_price, lines["joule"].cost) == (None, None)
    event = JobEvent.objects.get(kind="request_succeeded")
    assert event.data["usage"] == {"prompt_token": "1000", "joule": "5"}
    assert Job.objects.get().state == JobState.RUNNING


def test_what_has_ended_ends_no_second_time(intent: Intent) -> None:
    dispatch.record_ended(intent, state=RequestState.REJECTED, detail="429")
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        dispatch.record_ended(intent, state=RequestState.FAILED)
    assert refused.value.reason is TransitionRefusal.NOT_A_LEGAL_MOVE
    assert photograph() == before


def test_doubt_is_written_down_and_is_no_failure(intent: Intent) -> None:
    dispatch.record_unknown(intent, detail="timeout\0" + "x" * 600)

    request = ProviderRequest.objects.get()
    assert (request.state, request.ended_at) == (RequestState.UNKNOWN, None)
    assert len(request.detail) == dispatch.DETAIL_LENGTH_MAX
    assert Attempt.objects.get().state == AttemptState.OPEN
    assert Job.objects.get().state == JobState.DISPATCHING


def test_doubt_after_acceptance_does_not_take_the_acceptance_back(intent: Intent) -> None:
    dispatch.record_accepted(intent, provider_request_id=None)
    dispatch.record_unknown(intent, detail="cut")
    assert ProviderRequest.objects.get().state == RequestState.ACCEPTED


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            lambda one: dispatch.record_accepted(one, provider_request_id=None), id="accepted"
        ),
        pytest.param(dispatch.record_started, id="started"),
        pytest.param(
            lambda one: dispatch.record_ended(one, state=RequestState.SUCCEEDED), id="ended"
        ),
        pytest.param(lambda one: dispatch.record_unknown(one, detail=""), id="unknown"),
    ],
)
def test_a_late_holder_records_nothing(intent: Intent, record: Callable[[Intent], None]) -> None:
    let_pass(30 * SECOND)
    before = photograph()
    with pytest.raises(TransitionRefused) as refused:
        record(intent)
    assert refused.value.reason is TransitionRefusal.LEASE_EXPIRED
    assert photograph() == before


def test_a_provider_that_said_no_lets_the_attempt_end_by_evidence(intent: Intent) -> None:
    dispatch.record_ended(intent, state=RequestState.REJECTED, detail="400")
    attempts.fail(intent.proof, cause=EndReason.PROVIDER_REJECTED, error="400")
    assert Job.objects.get().state == JobState.FAILED
    assert Attempt.objects.get().state == AttemptState.REJECTED
