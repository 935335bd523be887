"""A small world in which the real rules decide: one job, its owners, its slots, its provider.

What the world does is what services do around a rule: gather facts, ask, write the verdict.
It takes part in no decision. It is worse than reality on purpose: messages are never used up
and arrive at any worker at any time, an owner remembers its lease until it dies and may act
upon that memory however late, answers get lost, a send may leave long after its intent, and
all leases of one slot share one id, so that the fence alone tells their owners apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import cache
from typing import NamedTuple, TypeVar
from uuid import UUID

from leaseq.rules import attempts, money, outcome, renewal, transitions
from leaseq.rules.bounds import JobBounds
from leaseq.rules.ownership import Fence, LeaseFacts, OwnerProof
from leaseq.vocabulary import (
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
)

BEGIN = 8
TTL, QUEUE_AGE_MAX, RUN_TIME_MAX, LEASE_LIFE_MAX = 2, 3, 2, 3
HOLD_EXPIRES = BEGIN + 3
RENEWALS_MAX, ATTEMPTS_MAX = 2, 3
WORKERS, SLOTS = 2, 2
CONTROLLER = WORKERS
HOLD, COST = Decimal(10), Decimal(3)
START = datetime(2026, 3, 1, tzinfo=UTC)
INSTANTS = [START + timedelta(seconds=second) for second in range(64)]
SPANS = [timedelta(seconds=second) for second in range(64)]
IDS = [UUID(int=number) for number in range(64)]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The functions under search; a planted wrong rule replaces one of them."""

    reserve: Callable[..., object] = attempts.decide_reserve
    queue: Callable[..., object] = attempts.decide_queue
    claim: Callable[..., object] = attempts.decide_claim
    intend: Callable[..., object] = attempts.decide_intent
    accept: Callable[..., object] = attempts.decide_accept
    start: Callable[..., object] = attempts.decide_start
    complete: Callable[..., object] = attempts.decide_complete
    fail: Callable[..., object] = attempts.decide_fail
    cancel: Callable[..., object] = attempts.decide_cancel_request
    renew: Callable[..., object] = renewal.decide_renewal
    lose: Callable[..., object] = outcome.decide_loss
    expire_queue: Callable[..., object] = outcome.decide_queue_expiry
    settle: Callable[..., object] = money.decide_settlement
    expire_hold: Callable[..., object] = money.decide_hold_expiry
    unsend: Callable[..., object] = transitions.check_sent_move


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One shape of the world: how far time runs, and whether work ends with its holder."""

    horizon: int
    ends_with_connection: bool


class Work(IntEnum):
    """What the provider truly does for one attempt."""

    NONE = 0
    RUNS = 1
    DONE = 2
    STOPPED = 3
    TWICE = 4


class Lease(NamedTuple):
    slot: int
    number: int
    fence: int
    status: LeaseStatus
    expires: int
    created: int
    version: int = 1
    renewals: int = 0
    renewed: int | None = None
    ended: int | None = None


STRANGER = Lease(
    slot=0, number=0, fence=0, status=LeaseStatus.ACTIVE, expires=BEGIN + 1, created=BEGIN
)
"""Another job's lease, on the first slot: it lives until its expiry and is then dead."""


class Mind(NamedTuple):
    """What an owner remembers, true or not."""

    slot: int
    number: int
    fence: int
    version: int
    intended: bool = False
    sent: bool = False


class World(NamedTuple):
    now: int = BEGIN
    job: JobState = JobState.ADMITTED
    cancelled: bool = False
    outcomes: tuple[AttemptState, ...] = (AttemptState.OPEN,)
    sent: tuple[bool, ...] = (False,)
    evidence: tuple[bool, ...] = (False,)
    waiting: int | None = BEGIN
    queue_used: int = 0
    first_reserved: int | None = None
    accepted: int | None = None
    started: int | None = None
    permit: int | None = None
    published: frozenset[int] = frozenset()
    leases: tuple[Lease, ...] = (STRANGER,)
    minds: tuple[Mind | None, ...] = (None,) * (WORKERS + 1)
    work: tuple[Work, ...] = (Work.NONE,)
    hold: HoldState = HoldState.HELD
    settled: Decimal = Decimal(0)
    freed: Decimal = Decimal(0)

    @property
    def number(self) -> int:
        return len(self.outcomes)


class Act(NamedTuple):
    """What happened; by which owner, or told about which attempt, where that matters."""

    name: str
    who: int | None = None
    about: int | None = None


Step = tuple[Act, World]
Named = tuple[str, World]


def at(second: int | None) -> datetime | None:
    return None if second is None else INSTANTS[second]


def bounds_facts(w: World) -> JobBounds:
    """Return the job's clocks; those that the world does not run are far away."""
    return _bounds_facts(w.waiting, w.queue_used, w.accepted, w.started)


@cache
def _bounds_facts(
    waiting: int | None, queue_used: int, accepted: int | None, started: int | None
) -> JobBounds:
    return JobBounds(
        waiting_since=at(waiting),
        queue_time_used=SPANS[queue_used],
        queue_age_max=SPANS[QUEUE_AGE_MAX],
        first_reserved_at=None,
        lease_life_max=SPANS[LEASE_LIFE_MAX],
        reserved_at=None,
        reserved_time_used=SPANS[0],
        reserved_time_max=SPANS[60],
        accepted_at=at(accepted),
        provider_wait_max=SPANS[60],
        started_at=at(started),
        run_time_max=SPANS[RUN_TIME_MAX],
        progress_at=None,
        stall_limit=None,
    )


def attempt_facts(w: World, number: int) -> attempts.AttemptFacts:
    """Return the job as the attempt of this number sees it."""
    state, sent = w.outcomes[number - 1], w.sent[number - 1]
    return _attempt_facts(
        now=w.now,
        job=w.job,
        current=w.number,
        number=number,
        state=state,
        sent=sent,
        cancelled=w.cancelled,
    )


@cache
def _attempt_facts(
    *,
    now: int,
    job: JobState,
    current: int,
    number: int,
    state: AttemptState,
    sent: bool,
    cancelled: bool,
) -> attempts.AttemptFacts:
    return attempts.AttemptFacts(
        now=INSTANTS[now],
        job_state=job,
        current_attempt_id=IDS[current],
        attempt_id=IDS[number],
        attempt_state=state,
        cancel_asked_at=START if cancelled else None,
        possibly_sent=sent,
        changed_at=START,
    )


@cache
def lease_facts(lease: Lease) -> LeaseFacts:
    return LeaseFacts(
        lease_id=IDS[lease.slot],
        attempt_id=IDS[lease.number],
        status=lease.status,
        fence=Fence(epoch=1, counter=lease.fence),
        version=lease.version,
        expires_at=INSTANTS[lease.expires],
        created_at=INSTANTS[lease.created],
        first_reserved_at=INSTANTS[lease.created],
        renewal_count=lease.renewals,
        renewals_before=0,
        renewal_key=None,
        renewed_at=at(lease.renewed),
    )


def proof(mind: Mind) -> OwnerProof:
    return OwnerProof(
        lease_id=IDS[mind.slot],
        attempt_id=IDS[mind.number],
        fence=Fence(epoch=1, counter=mind.fence),
    )


def newest(w: World, slot: int) -> int | None:
    """Return the place of the slot's newest lease row."""
    found = [place for place, lease in enumerate(w.leases) if lease.slot == slot]
    return found[-1] if found else None


def word(w: World, mind: Mind) -> attempts.ByOwner:
    place = newest(w, mind.slot)
    lease = None if place is None else lease_facts(w.leases[place])
    return attempts.ByOwner(proof=proof(mind), lease=lease)


def hold_facts(w: World) -> attempts.HoldFacts:
    """Return the job's money."""
    return _hold_facts(w.hold)


@cache
def _hold_facts(state: HoldState) -> attempts.HoldFacts:
    return attempts.HoldFacts(state=state, expires_at=INSTANTS[HOLD_EXPIRES])


def put(row: tuple[Item, ...], place: int, item: Item) -> tuple[Item, ...]:
    return (*row[:place], item, *row[place + 1 :])


def close(w: World, *, state: JobState, attempt: AttemptState) -> World:
    """End the current attempt and its leases, and give the job this state."""
    leases = tuple(
        row._replace(status=LeaseStatus.RELEASED, ended=w.now)
        if row.status is LeaseStatus.ACTIVE and row.number == w.number
        else row
        for row in w.leases
    )
    return w._replace(
        job=state,
        outcomes=put(w.outcomes, w.number - 1, attempt),
        leases=leases,
        permit=None,
        waiting=None,
    )
