"""What an owner and the provider can do next, however late and from whatever memory."""

from collections.abc import Iterator

from leaseq.rules import attempts, renewal
from leaseq.vocabulary import AttemptState, EndReason, JobState, LeaseStatus

from . import world
from .losses import completed, lose
from .world import CONTROLLER, INSTANTS, SPANS, START, Mind, Named, Rules, Setting, Work, World, put


def owner_acts(w: World, rules: Rules, setting: Setting, who: int, mind: Mind) -> Iterator[Named]:
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
            yield "the owner completes", completed(w, verdict)
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
                    sent=put(w.sent, place, item=True),
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


def provider_acts(w: World, rules: Rules, setting: Setting) -> Iterator[Named]:
    for place, work in enumerate(w.work):
        if work is Work.RUNS:
            yield "the provider finishes", w._replace(work=put(w.work, place, Work.DONE))
    if setting.ends_with_connection:
        return
    if w.sent[-1] and w.work[-1] is not Work.DONE and not w.evidence[-1]:
        told = w._replace(
            work=put(w.work, w.number - 1, Work.STOPPED),
            evidence=put(w.evidence, w.number - 1, item=True),
        )
        if w.outcomes[-1] is AttemptState.OUTCOME_UNKNOWN or w.cancelled:
            ended = lose(told, rules, setting, EndReason.PROVIDER_UNKNOWN, stopped=False)
            yield "a tombstone is acknowledged", ended


def callbacks(w: World, rules: Rules, number: int) -> Iterator[Named]:
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
            yield "a callback tells completion", completed(w, verdict)


def _spoken(w: World, number: int) -> attempts.ActFacts:
    return attempts.ActFacts(
        attempt=world.attempt_facts(w, number), word=attempts.ByProvider(matches=True)
    )
