"""Everything that can happen next in the world: each act asks a rule and writes its verdict."""

from collections.abc import Iterator
from decimal import Decimal

from leaseq.rules import attempts, money, outcome, renewal
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
from .world import (
    CONTROLLER,
    INSTANTS,
    SPANS,
    START,
    Act,
    Lease,
    Mind,
    Rules,
    Setting,
    Named,
    Step,
    Work,
    World,
    put,
)


def steps(w: World, rules: Rules, setting: Setting) -> Iterator[Step]:
    """Yield every next world with the name of what happened."""
    for name, after in _nobody(w, rules, setting):
        yield Act(name), after
    for who, mind in enumerate(w.minds):
        if mind is not None:
            for name, after in _owner(w, rules, setting, who, mind):
                yield Act(name, who=who), after
    if not setting.ends_with_connection:
        for number in range(1, w.number + 1):
            for name, after in _callback(w, rules, number):
                yield Act(name, about=number), after


def _nobody(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    if w.now < setting.horizon:
        yield "the clock ticks", w._replace(now=w.now + 1)
    yield from _control_plane(w, rules, setting)
    yield from _claims(w, rules)
    yield from _provider(w, rules, setting)
    yield from _money(w, rules)
    if w.sent[-1] and rules.unsend(True, False) is None:
        yield "take back that it was sent", w._replace(sent=put(w.sent, w.number - 1, False))


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
        yield "cancel at once", _end(w, JobState.CANCELLED, AttemptState.CANCELLED)
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
        yield "the queue age is spent", _end(w, expiry.job_state, expiry.attempt_outcome)
    if w.outcomes[-1] is AttemptState.OUTCOME_UNKNOWN:
        ended = lose(w, rules, setting, EndReason.MONITORING_ENDED, stopped=False)
        yield "monitoring ends", ended


def lose(w: World, rules: Rules, setting: Setting, cause: EndReason, *, stopped: bool) -> World:
    """Ask what becomes of the job whose attempt ended, and write it."""
    had_capacity = any(lease.number == w.number for lease in w.leases)
    verdict = rules.lose(
        outcome.LossFacts(
            now=INSTANTS[w.now],
            job_state=w.job,
            attempt_state=w.outcomes[-1],
            cause=cause,
            had_capacity=had_capacity,
            attempts_counted=len({lease.number for lease in w.leases} - {0}),
            attempts_max=world.ATTEMPTS_MAX,
            possibly_sent=w.sent[-1],
            provider_terminal=w.evidence[-1],
            ends_with_connection=setting.ends_with_connection,
            holder_stopped=stopped,
            cancel_asked=w.cancelled,
            readmit_by_policy=True,
            renewals_left=1,
            on_bound=BoundHit.DEAD_LETTER,
            bounds=world.bounds_facts(w),
            retry_delay=SPANS[0],
        )
    )
    if isinstance(verdict, outcome.OutcomeUnknown):
        unknown = put(w.outcomes, w.number - 1, AttemptState.OUTCOME_UNKNOWN)
        return world.close(w, state=w.job, attempt=AttemptState.OUTCOME_UNKNOWN)._replace(
            outcomes=unknown
        )
    if isinstance(verdict, outcome.Ended):
        proven = outcome_is_proven(w, setting, stopped=stopped)
        ended = _end(w, verdict.job_state, verdict.attempt_outcome)
        return ended._replace(evidence=put(w.evidence, w.number - 1, proven))
    if isinstance(verdict, outcome.NextAttempt):
        closed = world.close(w, state=JobState.ADMITTED, attempt=verdict.attempt_outcome)
        proven = outcome_is_proven(w, setting, stopped=stopped)
        used = w.queue_used + (0 if w.waiting is None else w.now - w.waiting)
        return closed._replace(
            outcomes=(*closed.outcomes, AttemptState.OPEN),
            sent=(*w.sent, False),
            evidence=(*put(w.evidence, w.number - 1, proven), False),
            work=(*w.work, Work.NONE),
            waiting=w.now,
            queue_used=used,
            accepted=None,
            started=None,
        )
    return w


def outcome_is_proven(w: World, setting: Setting, *, stopped: bool) -> bool:
    """Say, without asking a rule, whether nothing of the attempt can still run (SPEC L5a)."""
    return not w.sent[-1] or w.evidence[-1] or (setting.ends_with_connection and stopped)


def _ended(lease: Lease, now: int) -> Lease:
    return lease._replace(status=LeaseStatus.EXPIRED, ended=now)


def _end(w: World, state: JobState, attempt: AttemptState) -> World:
    return world.close(w, state=state, attempt=attempt)


def _claims(w: World, rules: Rules) -> Iterator[Named]:
    # Owners and slots are alike: a fresh one is always the lowest that was not used yet.
    known = sum(1 for mind in w.minds[:CONTROLLER] if mind is not None)
    used_slots = max((lease.slot for lease in w.leases if lease.slot < world.SLOTS), default=-1)
    for number in w.published:
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


def _owner(w: World, rules: Rules, setting: Setting, who: int, mind: Mind) -> Iterator[Named]:
    yield from _renewals(w, rules, who, mind)
    yield from _sending(w, rules, who, mind)
    facts = attempts.ActFacts(attempt=world.attempt_facts(w, mind.number), word=world.word(w, mind))
    if mind.sent and isinstance(rules.accept(facts), attempts.Accept):
        accepted = w._replace(job=JobState.PROVIDER_ACCEPTED, accepted=w.now)
        yield "the owner records acceptance", accepted
        if not setting.ends_with_connection and who != CONTROLLER:
            yield "the owner hands over to the controller", _handed_over(accepted, mind)
    if mind.sent and isinstance(rules.start(facts), attempts.Start):
        yield "the owner records the start", w._replace(job=JobState.RUNNING, started=w.now)
    if w.work[mind.number - 1] is Work.DONE:
        verdict = rules.complete(facts, keep_result=False)
        if isinstance(verdict, attempts.Complete):
            yield "the owner completes", _completed(w, verdict)
    if setting.ends_with_connection and isinstance(rules.fail(facts), attempts.Fail):
        cause = EndReason.CANCELLED if w.cancelled else EndReason.TASK_RETRY
        stopped = _stop_work(w, mind)._replace(minds=put(w.minds, who, None))
        yield "the owner gives up", lose(stopped, rules, setting, cause, stopped=True)
    if who != CONTROLLER:
        dead = w._replace(minds=put(w.minds, who, None))
        yield "the owner dies", _stop_work(dead, mind) if setting.ends_with_connection else dead


def _stop_work(w: World, mind: Mind) -> World:
    place = mind.number - 1
    if w.work[place] is not Work.RUNS:
        return w
    return w._replace(work=put(w.work, place, Work.STOPPED))


def _handed_over(w: World, mind: Mind) -> World:
    place = len(w.leases) - 1
    old = w.leases[place]
    new = old._replace(fence=len(w.leases), version=1, created=w.now, renewed=None)
    ended = old._replace(status=LeaseStatus.TRANSFERRED, ended=w.now)
    controller = mind._replace(fence=new.fence, version=1)
    return w._replace(
        leases=(*put(w.leases, place, ended), new),
        minds=put(w.minds, CONTROLLER, controller),
    )


def _renewals(w: World, rules: Rules, who: int, mind: Mind) -> Iterator[Named]:
    word = world.word(w, mind)
    verdict = rules.renew(
        renewal.RenewalFacts(
            now=INSTANTS[w.now],
            proof=word.proof,
            expected_version=mind.version,
            renewal_key=None,
            lease=word.lease,
            attempt_state=w.outcomes[mind.number - 1],
            job_state=w.job,
            cancel_asked_at=START if w.cancelled else None,
            cancel_follow=False,
            stop_at=None,
            policy_open=True,
            ttl=SPANS[world.TTL],
            bounds=world.bounds_facts(w),
            renewals_max=world.RENEWALS_MAX,
            renewals_used=0,
            stage=renewal.Stage.EXECUTING,
            has_live_worker=True,
        )
    )
    if isinstance(verdict, renewal.AlreadyRenewed):
        knows = mind._replace(version=verdict.version)
        yield "hear of an earlier renewal", w._replace(minds=put(w.minds, who, knows))
    place = world.newest(w, mind.slot)
    if not isinstance(verdict, renewal.Renewed) or place is None:
        return
    lease = w.leases[place]
    renewed = lease._replace(
        expires=(verdict.expires_at - START).seconds,
        version=lease.version + 1,
        renewals=lease.renewals + 1,
        renewed=w.now,
    )
    unheard = w._replace(leases=put(w.leases, place, renewed))
    yield "renew, and the answer is lost", unheard
    knows = mind._replace(version=renewed.version)
    yield "renew", unheard._replace(minds=put(w.minds, who, knows))


def _sending(w: World, rules: Rules, who: int, mind: Mind) -> Iterator[Named]:
    place = mind.number - 1
    if not mind.intended:
        intent = attempts.IntentFacts(
            attempt=world.attempt_facts(w, mind.number),
            word=world.word(w, mind),
            hold=world.hold_facts(w),
            has_request=False,
        )
        if isinstance(rules.intend(intent), attempts.Intend):
            yield (
                "record the intent",
                w._replace(
                    sent=put(w.sent, place, True),
                    minds=put(w.minds, who, mind._replace(intended=True)),
                ),
            )
    elif not mind.sent:
        # Nothing holds the bytes back any more: a paused owner sends whenever it wakes.
        told = w._replace(minds=put(w.minds, who, mind._replace(sent=True)))
        if w.work[place] is Work.STOPPED:
            yield "send, refused by the tombstone", told
        else:
            runs = Work.RUNS if w.work[place] is Work.NONE else Work.TWICE
            yield "send", told._replace(work=put(w.work, place, runs))


def _provider(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    for place, work in enumerate(w.work):
        if work is Work.RUNS:
            yield "the provider finishes", w._replace(work=put(w.work, place, Work.DONE))
    if setting.ends_with_connection:
        return
    if w.sent[-1] and w.work[-1] is not Work.DONE and not w.evidence[-1]:
        told = w._replace(
            work=put(w.work, w.number - 1, Work.STOPPED),
            evidence=put(w.evidence, w.number - 1, True),
        )
        if w.outcomes[-1] is AttemptState.OUTCOME_UNKNOWN or w.cancelled:
            ended = lose(told, rules, setting, EndReason.PROVIDER_UNKNOWN, stopped=False)
            yield "a tombstone is acknowledged", ended


def _callback(w: World, rules: Rules, number: int) -> Iterator[Named]:
    """A callback of any attempt, late or repeated, is applied to the attempt it names."""
    work = w.work[number - 1]
    if number < w.number and w.sent[number - 1]:
        # Whatever became of it: a provider may contradict itself about an old attempt.
        work = Work.DONE
    if work not in (Work.RUNS, Work.DONE):
        return
    facts = _spoken(w, number)
    if isinstance(rules.accept(facts), attempts.Accept):
        w = w._replace(job=JobState.PROVIDER_ACCEPTED, accepted=w.now)
        yield "a callback tells acceptance", w
    if isinstance(rules.start(_spoken(w, number)), attempts.Start):
        w = w._replace(job=JobState.RUNNING, started=w.now)
        yield "a callback tells the start", w
    if work is Work.DONE:
        verdict = rules.complete(_spoken(w, number), keep_result=False)
        if isinstance(verdict, attempts.Complete):
            yield "a callback tells completion", _completed(w, verdict)


def _spoken(w: World, number: int) -> attempts.ActFacts:
    return attempts.ActFacts(
        attempt=world.attempt_facts(w, number), word=attempts.ByProvider(matches=True)
    )


def _completed(w: World, verdict: attempts.Complete) -> World:
    proven = w._replace(evidence=put(w.evidence, w.number - 1, True))
    return _end(proven, verdict.job_state, verdict.attempt_state)


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
            freed = _end(freed, expiry.job_state, AttemptState.EXPIRED)
        yield "the hold expires", freed


def _moved(w: World, state: HoldState, settled: Decimal, freed: Decimal) -> World:
    return w._replace(hold=state, settled=w.settled + settled, freed=w.freed + freed)
