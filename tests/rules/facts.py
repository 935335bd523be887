"""True defaults for every kind of facts: each is one in which the rule says yes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from leaseq.rules.attempts import (
    ActFacts,
    AttemptFacts,
    ByOwner,
    ByProvider,
    ClaimFacts,
    HoldFacts,
    IntentFacts,
    ReserveFacts,
)
from leaseq.rules.bounds import JobBounds
from leaseq.rules.outcome import LossFacts
from leaseq.rules.ownership import Fence, LeaseFacts, OwnerProof
from leaseq.rules.renewal import RenewalFacts, Stage
from leaseq.vocabulary import (
    AttemptState,
    BoundHit,
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
    WorkerState,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
TTL = 30 * SECOND
LEASE_ID, OTHER_LEASE_ID = UUID(int=1), UUID(int=2)
ATTEMPT_ID, OTHER_ATTEMPT_ID = UUID(int=11), UUID(int=12)
FENCE = Fence(epoch=1, counter=7)


def a_lease(**changes: Any) -> LeaseFacts:
    lease = LeaseFacts(
        lease_id=LEASE_ID,
        attempt_id=ATTEMPT_ID,
        status=LeaseStatus.ACTIVE,
        fence=FENCE,
        version=5,
        expires_at=NOW + 10 * SECOND,
        created_at=NOW - 60 * SECOND,
        first_reserved_at=NOW - 60 * SECOND,
        renewal_count=4,
        renewals_before=0,
        renewal_key="earlier",
        renewed_at=NOW - 20 * SECOND,
    )
    return replace(lease, **changes)


def a_proof(**changes: Any) -> OwnerProof:
    return replace(OwnerProof(lease_id=LEASE_ID, attempt_id=ATTEMPT_ID, fence=FENCE), **changes)


def some_bounds(**changes: Any) -> JobBounds:
    bounds = JobBounds(
        waiting_since=None,
        queue_time_used=timedelta(0),
        queue_age_max=HOUR,
        first_reserved_at=NOW - 60 * SECOND,
        lease_life_max=6 * HOUR,
        reserved_at=NOW - 60 * SECOND,
        reserved_time_used=timedelta(0),
        reserved_time_max=6 * HOUR,
        accepted_at=None,
        provider_wait_max=HOUR,
        started_at=None,
        run_time_max=HOUR,
        progress_at=None,
        stall_limit=None,
    )
    return replace(bounds, **changes)


def a_renewal(**changes: Any) -> RenewalFacts:
    facts = RenewalFacts(
        now=NOW,
        proof=a_proof(),
        expected_version=5,
        renewal_key="this",
        lease=a_lease(),
        attempt_state=AttemptState.OPEN,
        job_state=JobState.RUNNING,
        cancel_asked_at=None,
        cancel_follow=False,
        stop_at=None,
        policy_open=True,
        ttl=TTL,
        bounds=some_bounds(),
        renewals_max=100,
        renewals_used=0,
        stage=Stage.EXECUTING,
        has_live_worker=True,
    )
    return replace(facts, **changes)


def an_attempt(**changes: Any) -> AttemptFacts:
    attempt = AttemptFacts(
        now=NOW,
        job_state=JobState.RUNNING,
        current_attempt_id=ATTEMPT_ID,
        attempt_id=ATTEMPT_ID,
        attempt_state=AttemptState.OPEN,
        cancel_asked_at=None,
        possibly_sent=False,
        changed_at=NOW - SECOND,
    )
    return replace(attempt, **changes)


def an_owner(**changes: Any) -> ByOwner:
    return replace(ByOwner(proof=a_proof(), lease=a_lease()), **changes)


def an_act(*, word: ByOwner | ByProvider | None = None, **attempt: Any) -> ActFacts:
    return ActFacts(attempt=an_attempt(**attempt), word=word or an_owner())


def a_hold(**changes: Any) -> HoldFacts:
    return replace(HoldFacts(state=HoldState.HELD, expires_at=NOW + HOUR), **changes)


def a_reservation(*, attempt: AttemptFacts | None = None, **changes: Any) -> ReserveFacts:
    facts = ReserveFacts(
        attempt=attempt or an_attempt(job_state=JobState.ADMITTED),
        not_before=None,
        hold=a_hold(),
        permits_free=True,
        bounds=some_bounds(waiting_since=NOW - SECOND, first_reserved_at=None, reserved_at=None),
        ttl=TTL,
    )
    return replace(facts, **changes)


def a_claim(*, attempt: AttemptFacts | None = None, **changes: Any) -> ClaimFacts:
    facts = ClaimFacts(
        attempt=attempt or an_attempt(job_state=JobState.QUEUED),
        permits=(a_lease(),),
        hold=a_hold(),
        queue_matches=True,
        worker_state=WorkerState.LIVE,
        slot_owned=True,
        slot_lease=None,
        bounds=some_bounds(waiting_since=NOW - SECOND),
        ttl=TTL,
    )
    return replace(facts, **changes)


def an_intent(*, attempt: AttemptFacts | None = None, **changes: Any) -> IntentFacts:
    facts = IntentFacts(
        attempt=attempt or an_attempt(job_state=JobState.DISPATCHING),
        word=an_owner(),
        hold=a_hold(),
        has_request=False,
    )
    return replace(facts, **changes)


def a_loss(**changes: Any) -> LossFacts:
    facts = LossFacts(
        now=NOW,
        job_state=JobState.RUNNING,
        attempt_state=AttemptState.OPEN,
        cause=EndReason.LEASE_EXPIRED,
        had_capacity=True,
        attempts_counted=1,
        attempts_max=3,
        possibly_sent=False,
        provider_terminal=False,
        ends_with_connection=False,
        holder_stopped=False,
        cancel_asked=False,
        readmit_by_policy=False,
        renewals_left=10,
        on_bound=BoundHit.DEAD_LETTER,
        bounds=some_bounds(),
        retry_delay=5 * SECOND,
    )
    return replace(facts, **changes)
