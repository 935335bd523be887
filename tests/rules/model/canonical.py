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
    LeaseStatus,
)

from .world import BEGIN, CONTROLLER, Lease, Mind, Work, World


FORGOTTEN = 63
"""The slot of an ended lease that no owner remembers."""


def canonical(w: World) -> World:
    """Return the world that stands for all its equals."""
    is_over = w.job in TERMINAL_JOB_STATES
    minds = tuple(_mind(w, mind) for mind in w.minds)
    remembered = {mind.fence for mind in minds if mind is not None}
    outcomes, sent, evidence, work = zip(*_attempts(w, minds), strict=True)
    return w._replace(
        cancelled=w.cancelled and not is_over,
        outcomes=outcomes,
        sent=sent,
        evidence=evidence,
        work=work,
        waiting=None if w.waiting is None or is_over else w.waiting - w.queue_used,
        queue_used=0 if w.waiting is not None or is_over else w.queue_used,
        accepted=None if w.accepted is None or is_over else BEGIN,
        started=None if is_over else w.started,
        published=w.published | frozenset(range(1, w.number)),
        leases=tuple(_lease(lease, remembered) for lease in w.leases),
        minds=(*sorted(minds[:CONTROLLER], key=_order), minds[CONTROLLER]),
    )


Minds = tuple[Mind | None, ...]
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
    is_stale = w.leases[mind.fence].status is not LeaseStatus.ACTIVE
    if not is_stale or (mind.intended and not mind.sent):
        return mind
    return mind._replace(version=0, intended=True, sent=True)


def _order(mind: Mind | None) -> tuple[int, ...]:
    return (1,) if mind is None else (0, *mind)


def _lease(lease: Lease, remembered: set[int]) -> Lease:
    if lease.status is LeaseStatus.ACTIVE:
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
