"""What services write when an attempt ends: with its outcome, its leases and its evidence."""

from leaseq.rules import attempts, outcome
from leaseq.vocabulary import AttemptState, BoundHit, EndReason, JobState

from . import world
from .world import INSTANTS, SPANS, Rules, Setting, Work, World, close, put


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
        return close(w, state=w.job, attempt=AttemptState.OUTCOME_UNKNOWN)._replace(
            outcomes=unknown
        )
    if isinstance(verdict, outcome.Ended):
        proven = outcome_is_proven(w, setting, stopped=stopped)
        ended = close(w, state=verdict.job_state, attempt=verdict.attempt_outcome)
        return ended._replace(evidence=put(w.evidence, w.number - 1, item=proven))
    if isinstance(verdict, outcome.NextAttempt):
        closed = close(w, state=JobState.ADMITTED, attempt=verdict.attempt_outcome)
        proven = outcome_is_proven(w, setting, stopped=stopped)
        used = w.queue_used + (0 if w.waiting is None else w.now - w.waiting)
        return closed._replace(
            outcomes=(*closed.outcomes, AttemptState.OPEN),
            sent=(*w.sent, False),
            evidence=(*put(w.evidence, w.number - 1, item=proven), False),
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


def completed(w: World, verdict: attempts.Complete) -> World:
    """Write the end of a job whose attempt completed; a completion is evidence."""
    proven = w._replace(evidence=put(w.evidence, w.number - 1, item=True))
    return close(proven, state=verdict.job_state, attempt=verdict.attempt_state)
