"""One world for all that no rule and no invariant can tell apart, so that the search ends.

Each step is judged before its world is made canonical, so nothing is forgotten that a step
could still break. What is dropped: how and when an ended lease ended, what a stale owner
knows beside its token and whether its bytes may still leave, the clocks of a finished job,
which closed outcome an earlier attempt had, and which of two like owners is which.
"""

from leaseq.vocabulary import (
    TERMINAL_JOB_STATES,
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    HoldState,
    LeaseStatus,
)

from .world import BEGIN, CONTROLLER, Lease, Mind, Work, World

FORGOTTEN = 63
"""The slot of an ended lease that no owner remembers."""
LATER = 60
"""An instant after every horizon."""


def canonical(w: World) -> World:
    """Return the world that stands for all its equals."""
    is_over = w.job in TERMINAL_JOB_STATES
    # With the job over and its money closed nothing is left that time could change.
    is_still = is_over and w.hold is not HoldState.HELD
    minds = tuple(_mind(w, mind) for mind in w.minds)
    remembered = {mind.fence for mind in minds if mind is not None}
    attempts = _attempts(w, minds)
    leases = tuple(_lease(lease, remembered, ended=is_still) for lease in w.leases)
    leases, minds = _relabelled(leases, minds)
    return w._replace(
        now=LATER if is_still else w.now,
        cancelled=w.cancelled and not is_over,
        outcomes=tuple(row[0] for row in attempts),
        sent=tuple(row[1] for row in attempts),
        evidence=tuple(row[2] for row in attempts),
        work=tuple(row[3] for row in attempts),
        waiting=None if w.waiting is None or is_over else w.waiting - w.queue_used,
        queue_used=0 if w.waiting is not None or is_over else w.queue_used,
        accepted=None if w.accepted is None or is_over else BEGIN,
        started=None if is_over else w.started,
        published=w.published | frozenset(range(1, w.number)),
        leases=leases,
        minds=(*sorted(minds[:CONTROLLER], key=_order), minds[CONTROLLER]),
    )


Minds = tuple[Mind | None, ...]
Leases = tuple[Lease, ...]
Attempt = tuple[AttemptState, bool, bool, Work]


def _attempts(w: World, minds: Minds) -> list[Attempt]:
    # Earlier attempts that no owner remembers differ by what they were, not by their number.
    remembered = {mind.number for mind in minds if mind is not None}
    rows = [_attempt(w, number, minds) for number in range(1, w.number + 1)]
    alike = [place for place in range(w.number - 1) if place + 1 not in remembered]
    ordered = sorted((rows[place] for place in alike), key=lambda row: row[1:])
    for place, row in zip(alike, ordered, strict=True):
        rows[place] = row
    return rows


def _attempt(w: World, number: int, minds: Minds) -> Attempt:
    place = number - 1
    state, sent, proven, work = w.outcomes[place], w.sent[place], w.evidence[place], w.work[place]
    if state in UNCLOSED_ATTEMPT_STATES:
        return state, sent, proven, work
    may_leave = any(
        mind is not None and mind.number == number and mind.intended and not mind.sent
        for mind in minds
    )
    if work is Work.STOPPED and not may_leave:
        work = Work.NONE
    return AttemptState.LOST, sent, proven or not sent, work


def _mind(w: World, mind: Mind | None) -> Mind | None:
    if mind is None:
        return None
    is_stale = w.outcomes[mind.number - 1] is not AttemptState.OPEN
    if not is_stale or (mind.intended and not mind.sent):
        return mind
    return mind._replace(version=0, intended=True, sent=True)


def _relabelled(leases: Leases, minds: Minds) -> tuple[Leases, Minds]:
    # Once the stranger's lease is gone the slots are alike: the first one seen is the first.
    if leases[0].slot != FORGOTTEN:
        return leases, minds
    seen = next((lease.slot for lease in leases if lease.slot != FORGOTTEN), 0)
    if seen == 0:
        return leases, minds
    new_slot = {0: 1, 1: 0, FORGOTTEN: FORGOTTEN}
    return (
        tuple(lease._replace(slot=new_slot[lease.slot]) for lease in leases),
        tuple(mind and mind._replace(slot=new_slot[mind.slot]) for mind in minds),
    )


def _order(mind: Mind | None) -> tuple[int, ...]:
    return (1,) if mind is None else (0, *mind)


def _lease(lease: Lease, remembered: set[int], *, ended: bool) -> Lease:
    if lease.status is LeaseStatus.ACTIVE and not ended:
        return lease if lease.renewed is None else lease._replace(renewed=lease.created)
    return Lease(
        slot=lease.slot if lease.fence in remembered else FORGOTTEN,
        number=lease.number,
        fence=lease.fence,
        status=LeaseStatus.RELEASED,
        expires=BEGIN,
        created=BEGIN,
        version=0,
        ended=BEGIN,
    )
