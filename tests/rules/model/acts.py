"""Everything that can happen next in the world: each act asks a rule and writes its verdict."""

from collections.abc import Iterator
from decimal import Decimal

from leaseq.rules import attempts, money, outcome
from leaseq.rules.ownership import LeaseFacts
from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    BoundHit,
    EndReason,
    HoldState,
    JobState,
    LeaseStatus,
    WorkerState,
)

from . import world
from .losses import lose
from .owners import callbacks, owner_acts, provider_acts
from .world import (
    CONTROLLER,
    INSTANTS,
    SPANS,
    START,
    Act,
    Lease,
    Mind,
    Named,
    Rules,
    Setting,
    Step,
    Work,
    World,
    close,
    put,
)


def steps(w: World, rules: Rules, setting: Setting) -> Iterator[Step]:
    """Yield every next world with the name of what happened."""
    for name, after in _nobody(w, rules, setting):
        yield Act(name), after
    for who, mind in enumerate(w.minds):
        if mind is not None:
            for name, after in owner_acts(w, rules, setting, who, mind):
                yield Act(name, who=who), after
    if not setting.ends_with_connection:
        for number in range(1, w.number + 1):
            for name, after in callbacks(w, rules, number):
                yield Act(name, about=number), after


def _nobody(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    if w.now < setting.horizon:
        yield "the clock ticks", w._replace(now=w.now + 1)
    yield from _control_plane(w, rules, setting)
    yield from _claims(w, rules)
    yield from provider_acts(w, rules, setting)
    yield from _money(w, rules)
    if w.sent[-1] and rules.unsend(before=True, after=False) is None:
        yield "take back that it was sent", w._replace(sent=put(w.sent, w.number - 1, item=False))


def _control_plane(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    facts = attempts.ReserveFacts(
        attempt=world.attempt_facts(w, w.number),
        not_before=None,
        hold=world.hold_facts(w),
        permits_free=True,
        bounds=world.bounds_facts(w),
        ttl=SPANS[world.TTL],
    )
    verdict = rules.reserve(facts)
    if isinstance(verdict, attempts.Reserve):
        reserved = w._replace(job=JobState.RESERVED, permit=(verdict.expires_at - START).seconds)
        if isinstance(rules.queue(world.attempt_facts(reserved, w.number)), attempts.Queue):
            published = w.published | {w.number}
            yield "reserve and publish", reserved._replace(job=JobState.QUEUED, published=published)
    yield from _sweeps(w, rules, setting)
    asked = rules.cancel(world.attempt_facts(w, w.number))
    if isinstance(asked, attempts.CancelNow):
        yield "cancel at once", close(w, state=JobState.CANCELLED, attempt=AttemptState.CANCELLED)
    elif isinstance(asked, attempts.AskCancel):
        yield "ask to cancel", w._replace(cancelled=True)


def _sweeps(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    for place, lease in enumerate(w.leases):
        if lease.status is LeaseStatus.ACTIVE and lease.expires <= w.now:
            swept = w._replace(leases=put(w.leases, place, _ended(lease, w.now)))
            if lease.number == w.number:
                holder_gone = all(m is None or m.fence != lease.fence for m in w.minds)
                swept = lose(swept, rules, setting, EndReason.LEASE_EXPIRED, stopped=holder_gone)
            yield "sweep an expired lease", swept
    if w.job is JobState.QUEUED and w.permit is not None and w.permit <= w.now:
        lost = lose(w, rules, setting, EndReason.RESERVATION_EXPIRED, stopped=False)
        yield "sweep an expired reservation", lost
    expiry = rules.expire_queue(
        now=INSTANTS[w.now],
        job_state=w.job,
        bounds=world.bounds_facts(w),
        on_bound=BoundHit.DEAD_LETTER,
    )
    if isinstance(expiry, outcome.Ended):
        yield (
            "the queue age is spent",
            close(w, state=expiry.job_state, attempt=expiry.attempt_outcome),
        )
    if w.outcomes[-1] is AttemptState.OUTCOME_UNKNOWN:
        ended = lose(w, rules, setting, EndReason.MONITORING_ENDED, stopped=False)
        yield "monitoring ends", ended


def _ended(lease: Lease, now: int) -> Lease:
    return lease._replace(status=LeaseStatus.EXPIRED, ended=now)


def _claims(w: World, rules: Rules) -> Iterator[Named]:
    # Owners and slots are alike: a fresh one is always the lowest that was not used yet.
    known = sum(1 for mind in w.minds[:CONTROLLER] if mind is not None)
    used_slots = max((lease.slot for lease in w.leases if lease.slot < world.SLOTS), default=-1)
    # Messages of old attempts are alike: the newest of them speaks for all.
    for number in sorted(w.published)[-2:]:
        for who in range(min(known + 1, world.WORKERS)):
            if w.minds[who] is not None:
                continue
            for slot in range(min(used_slots + 2, world.SLOTS)):
                yield from _claim(w, rules, number, who, slot)


def _claim(w: World, rules: Rules, number: int, who: int, slot: int) -> Iterator[Named]:
    place = world.newest(w, slot)
    taken = None if place is None else w.leases[place]
    if taken is not None and taken.status is not LeaseStatus.ACTIVE:
        taken = None
    permit = () if w.permit is None else (_permit(w, w.permit),)
    verdict = rules.claim(
        attempts.ClaimFacts(
            attempt=world.attempt_facts(w, number),
            permits=permit,
            hold=world.hold_facts(w),
            queue_matches=True,
            worker_state=WorkerState.LIVE,
            slot_owned=True,
            slot_lease=None if taken is None else world.lease_facts(taken),
            bounds=world.bounds_facts(w),
            ttl=SPANS[world.TTL],
        )
    )
    if not isinstance(verdict, attempts.Claim):
        return
    leases = w.leases
    if place is not None and verdict.expire_first is not None:
        leases = put(leases, place, _ended(leases[place], w.now))
    lease = Lease(
        slot=slot,
        number=number,
        fence=len(leases),
        status=LeaseStatus.ACTIVE,
        expires=(verdict.expires_at - START).seconds,
        created=w.now,
    )
    mind = Mind(slot=slot, number=number, fence=lease.fence, version=1)
    waited = 0 if w.waiting is None else w.now - w.waiting
    yield (
        "claim",
        w._replace(
            job=JobState.DISPATCHING,
            leases=(*leases, lease),
            minds=put(w.minds, who, mind),
            waiting=None,
            queue_used=w.queue_used + waited,
            permit=None,
        ),
    )


def _permit(w: World, expires: int) -> LeaseFacts:
    lease = Lease(
        slot=60,
        number=w.number,
        fence=60,
        status=LeaseStatus.ACTIVE,
        expires=expires,
        created=0,
    )
    return world.lease_facts(lease)


def _money(w: World, rules: Rules) -> Iterator[Named]:
    done = sum(work is Work.DONE for work in w.work)
    verdict = rules.settle(
        money.SettlementFacts(
            job_state=w.job,
            hold_state=w.hold,
            hold_amount=world.HOLD,
            possibly_sent=any(w.sent),
            outcome_unknown=AttemptState.OUTCOME_UNKNOWN in w.outcomes,
            closed_by_evidence=all(
                proven or not sent for proven, sent in zip(w.evidence, w.sent, strict=True)
            ),
            costs=(world.COST,) * done,
        )
    )
    if isinstance(verdict, money.Settle):
        yield "settle", _moved(w, HoldState.SETTLED, verdict.settle, verdict.release)
    elif isinstance(verdict, money.Release):
        yield "release", _moved(w, HoldState.RELEASED, Decimal(0), verdict.release)
    expiry = rules.expire_hold(
        money.HoldExpiryFacts(
            now=INSTANTS[w.now],
            expires_at=INSTANTS[world.HOLD_EXPIRES],
            hold_state=w.hold,
            hold_amount=world.HOLD,
            job_state=w.job,
            possibly_sent=any(w.sent),
            has_usage=done > 0,
        )
    )
    if isinstance(expiry, money.ExpireHold):
        freed = _moved(w, HoldState.EXPIRED, Decimal(0), expiry.release)
        if w.job not in TERMINAL_JOB_STATES and w.outcomes[-1] in UNCLOSED_ATTEMPT_STATES:
            freed = close(freed, state=expiry.job_state, attempt=AttemptState.EXPIRED)
        yield "the hold expires", freed


def _moved(w: World, state: HoldState, settled: Decimal, freed: Decimal) -> World:
    return w._replace(hold=state, settled=w.settled + settled, freed=w.freed + freed)
