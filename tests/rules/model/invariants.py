"""What must hold in every world and over every step, told without asking a rule.

The ids are those of PROMISES section 3.
"""

from collections.abc import Iterator

from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    HoldState,
    JobState,
    LeaseStatus,
)

from . import world
from .world import Act, Lease, Work, World

_ORDER = [
    JobState.ADMITTED,
    JobState.QUEUED,
    JobState.DISPATCHING,
    JobState.PROVIDER_ACCEPTED,
    JobState.RUNNING,
    JobState.COMPLETED,
]
_OWNER_ACTS = frozenset(
    {
        "renew",
        "renew, and the answer is lost",
        "record the intent",
        "the owner records acceptance",
        "the owner hands over to the controller",
        "the owner records the start",
        "the owner completes",
        "the owner gives up",
    }
)
# One callback may tell acceptance, start and completion at once.
_TOLD_AT_ONCE = "a callback tells"


def broken(before: World, act: Act, after: World) -> Iterator[str]:
    """Yield the id of each invariant that this step breaks."""
    yield from _leases(before, act, after)
    yield from _job(before, act, after)
    yield from _provider(before, act, after)
    yield from _money(before, act, after)


def _leases(before: World, act: Act, after: World) -> Iterator[str]:
    for place, lease in enumerate(after.leases):
        if place >= len(before.leases):
            if any(_end(old) > after.now for old in after.leases[:place] if old.slot == lease.slot):
                yield "L1 no two leases of a slot overlap"
            if act.name == "claim" and any(old.number == lease.number for old in before.leases):
                yield "Q4 a repeated message claims an attempt twice"
            continue
        old = before.leases[place]
        if old == lease:
            continue
        if old.status is not LeaseStatus.ACTIVE:
            yield "L8 an ended lease does not change"
        elif lease.version != old.version:
            yield from _renewed(before, old, lease)
    if act.name in _OWNER_ACTS and not _actor_owns(before, act):
        yield "L3 only the current owner of a live lease acts"


def _end(lease: Lease) -> int:
    return lease.expires if lease.ended is None else min(lease.ended, lease.expires)


def _renewed(before: World, old: Lease, new: Lease) -> Iterator[str]:
    deadlines = [before.now + world.TTL, old.created + world.LEASE_LIFE_MAX]
    if before.started is not None:
        deadlines.append(before.started + world.RUN_TIME_MAX)
    if old.expires <= before.now or new.expires > min(deadlines) or new.expires <= before.now:
        yield "L4 a renewal is in time and within every bound"
    if new.renewals > world.RENEWALS_MAX or before.job in TERMINAL_JOB_STATES or before.cancelled:
        yield "L4 a renewal is within its budget and of a living job"
    kept = old._replace(
        expires=new.expires, version=new.version, renewals=new.renewals, renewed=new.renewed
    )
    if kept != new:
        yield "L5 a renewal touches nothing else"
    memories = [mind.version for mind in before.minds if mind and mind.fence == old.fence]
    if new.version != old.version + 1 or old.version not in memories:
        yield "L6 a repeated renewal makes no second step"


def _actor_owns(before: World, act: Act) -> bool:
    """Say whether the memory of the owner that acted is true."""
    mind = None if act.who is None else before.minds[act.who]
    if mind is None or mind.number != before.number:
        return False
    lease = before.leases[mind.fence]
    return lease.status is LeaseStatus.ACTIVE and before.now < lease.expires


def _job(before: World, act: Act, after: World) -> Iterator[str]:
    if not _is_legal(before.job, act, after.job):
        yield "J1 state changes follow the table"
    if before.job in TERMINAL_JOB_STATES and (
        after.job is not before.job or after.outcomes != before.outcomes
    ):
        yield "J2 a terminal job does not change"
    for old, new in zip(before.outcomes, after.outcomes, strict=False):
        if old not in UNCLOSED_ATTEMPT_STATES and old is not new:
            yield "J2 a closed attempt does not change"
    unclosed = [state for state in after.outcomes if state in UNCLOSED_ATTEMPT_STATES]
    if len(unclosed) > 1 or (after.job in TERMINAL_JOB_STATES and unclosed):
        yield "J3 at most one attempt is not closed, and none of a terminal job"
    if after.number > before.number:
        if _may_still_run(after, before.number):
            yield "J3 a next attempt opens only on evidence"
        if before.cancelled:
            yield "B4a no next attempt after a cancel request"
    if len({lease.number for lease in after.leases} - {0}) > world.ATTEMPTS_MAX:
        yield "P4 attempts are bounded"
    if after.job is JobState.RUNNING and (after.accepted is None or after.started is None):
        yield "J5 running needs acceptance and start"
    if after.job is not before.job and _completes_unstarted(after):
        yield "J5 completion needs a start"
    if act.about not in (None, before.number) and after != before:
        yield "C3 a callback of one attempt changes no other"
    yield from _live_leases_belong(after)


def _completes_unstarted(after: World) -> bool:
    return after.job is JobState.COMPLETED and after.started is None


def _live_leases_belong(after: World) -> Iterator[str]:
    for lease in after.leases:
        if lease.status is LeaseStatus.ACTIVE and lease.number > 0:
            state = after.outcomes[lease.number - 1]
            if state is not AttemptState.OPEN:
                yield "SPEC L1 no lease outlives its attempt"


def _is_legal(old: JobState, act: Act, new: JobState) -> bool:
    if old is new:
        return True
    if old in TERMINAL_JOB_STATES:
        return False
    if new in (JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED, JobState.ADMITTED):
        return True
    steps = _ORDER.index(new) - _ORDER.index(old)
    return steps == 1 or (steps > 1 and act.name.startswith(_TOLD_AT_ONCE))


def _may_still_run(after: World, number: int) -> bool:
    """Say whether the attempt computes, or its bytes may still leave and start to."""
    if after.work[number - 1] is Work.RUNS:
        return True
    in_flight = any(
        mind is not None and mind.number == number and mind.intended and not mind.sent
        for mind in after.minds
    )
    return in_flight and after.work[number - 1] is not Work.STOPPED


def _provider(before: World, act: Act, after: World) -> Iterator[str]:
    for sent, work in zip(after.sent, after.work, strict=True):
        if work is not Work.NONE and not sent:
            yield "J7 nothing is sent without an intent on record"
        if work is Work.TWICE:
            yield "V1 an attempt computes at most once"
    if any(old and not new for old, new in zip(before.sent, after.sent, strict=False)):
        yield "J8 possibly sent is never taken back"
    if sum(work is Work.RUNS for work in after.work) > 1:
        yield "V2 at most one computation of a job lives"
    if act.name == "record the intent" and before.cancelled:
        yield "V5 nothing new is sent after a cancel request"


def _money(before: World, act: Act, after: World) -> Iterator[str]:
    closed = after.hold is not HoldState.HELD
    if after.settled + after.freed != (world.HOLD if closed else 0):
        yield "M2 held, settled and released make up what was authorised"
    if before.hold is not HoldState.HELD and before.hold is not after.hold:
        yield "M4 a hold is closed once"
    if after.hold is not before.hold and act.name not in {"settle", "release", "the hold expires"}:
        yield "M6 nothing but money's own rules closes a hold"
    if after.hold is not before.hold:
        if any(_may_cost(before, number) for number in range(1, before.number + 1)):
            yield "M5 a hold is closed only on evidence"
        if before.job not in TERMINAL_JOB_STATES and act.name != "the hold expires":
            yield "M5 the hold of a living job stays"
        if after.hold is not HoldState.SETTLED and Work.DONE in before.work:
            yield "F2 usage is never lost"


def _may_cost(w: World, number: int) -> bool:
    return w.sent[number - 1] and _may_still_run(w, number)
