"""Settle, release and expire holds by verdict, never with a lease in one transaction (SPEC F)."""

from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.db import OperationalError
from django.db.models import F

from leaseq.db import clock, locks
from leaseq.db.locks import Locked
from leaseq.db.transactions import atomic
from leaseq.errors import LeaseqBug
from leaseq.models import Account, Attempt, Hold, LedgerEntry, ProviderRequest, UsageRecord
from leaseq.rules import money as rules
from leaseq.rules.transitions import Refused
from leaseq.services import endings, findings, usage
from leaseq.services.events import JobStory
from leaseq.vocabulary import (
    UNCLOSED_ATTEMPT_STATES,
    Book,
    EndReason,
    EntryKind,
    HoldState,
    JobState,
    KeepReason,
)

ACTOR = "control:settle"
LOOK_AGAIN_AFTER = timedelta(minutes=1)
KEPT_MENDS = {
    KeepReason.JOB_NOT_TERMINAL: "Nothing: the job's end settles it.",
    KeepReason.OUTCOME_UNKNOWN: "Nothing yet: it is settled once the provider's outcome is known.",
    KeepReason.NO_EVIDENCE: "Ask the provider whether it computed, and settle by hand.",
    KeepReason.UNPRICED_USAGE: (
        "Add a price for the unit, valid from before the usage; the next pass settles it."
    ),
    KeepReason.POSSIBLY_SENT: "Nothing yet: it is settled once the provider's outcome is known.",
}
HOLD_KEPT = "hold_kept"
ABOVE_HOLD = "usage_above_hold"
PAST_ITS_TIME = "hold_past_its_time"


def settle(job_id: UUID) -> str:
    """Close the hold of an ended job by its verdict, once (SPEC L7, F4).

    Returns what was done: `settled`, `released`, `expired`, or the reason why the hold is kept,
    which is also a finding. `nothing_due` where another session or an earlier pass did it,
    `account_busy` where somebody holds the account's row for long: it is tried again.
    """
    try:
        return _settle_now(job_id)
    except OperationalError as error:
        if not locks.timed_out(error):
            raise
        return "account_busy"


def _settle_now(job_id: UUID) -> str:
    with atomic():
        locks.wait_at_most(locks.SHORTLY_MS)
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None or locked.job.settle_at is None:
            return "nothing_due"
        hold = locks.hold_of(job_id)
        if hold is None:
            raise LeaseqBug("an ended job has no hold", job_id=job_id)
        account = locks.account(hold.account_id)
        now = clock.read()
        story = JobStory(locked.job, actor=ACTOR, now=now)
        attempts = list(Attempt.objects.filter(job_id=job_id))
        lines = list(UsageRecord.objects.filter(attempt__job_id=job_id))
        usage.price_late(lines)
        sent = any(one.possibly_sent for one in attempts)
        if hold.expires_at <= now and not sent and not lines:
            return _expire(hold, account, story)
        verdict = rules.decide_settlement(_facts(locked, hold, attempts, lines))
        match verdict:
            case Refused(reason=reason):
                raise LeaseqBug(f"an unsettled job's hold is not open: {reason}", job_id=job_id)
            case rules.Keep(reason=reason):
                _keep(story, hold, reason)
                return str(reason)
            case rules.Release(release=release, cause=cause):
                _move(hold, account, story, settle=Decimal(0), release=release, cause=cause)
                return "released"
            case rules.Settle():
                _settle(hold, account, story, verdict, lines)
                return "settled"


def _facts(
    locked: Locked, hold: Hold, attempts: list[Attempt], lines: list[UsageRecord]
) -> rules.SettlementFacts:
    sent = [one for one in attempts if one.possibly_sent]
    return rules.SettlementFacts(
        job_state=JobState(locked.job.state),
        hold_state=HoldState(hold.state),
        hold_amount=hold.amount,
        possibly_sent=bool(sent),
        outcome_unknown=any(one.state in UNCLOSED_ATTEMPT_STATES for one in attempts)
        or bool(sent and ProviderRequest.objects.filter(attempt__in=sent, ended_at=None).exists()),
        closed_by_evidence=all(one.reason != EndReason.MONITORING_ENDED for one in sent),
        costs=tuple(one.cost for one in lines),
    )


def _settle(
    hold: Hold,
    account: Account,
    story: JobStory,
    verdict: rules.Settle,
    lines: list[UsageRecord],
) -> None:
    entry = _move(
        hold,
        account,
        story,
        settle=verdict.settle,
        release=verdict.release,
        cause=EndReason.USAGE_SETTLED,
    )
    if entry is not None:
        UsageRecord.objects.filter(
            pk__in=[one.pk for one in lines], settled_by__isnull=True
        ).update(settled_by=entry)
    if verdict.overage:
        findings.open_finding(
            ABOVE_HOLD,
            job=story.job,
            severity="warning",
            evidence={"hold": str(hold.amount), "overage": str(verdict.overage)},
            suggested_action="Raise the cost ceiling of such jobs, or charge the overage by hand.",
            now=story.now,
        )


def _move(
    hold: Hold,
    account: Account,
    story: JobStory,
    *,
    settle: Decimal,
    release: Decimal,
    cause: EndReason,
) -> LedgerEntry | None:
    """Move the held money, close the hold, and return the entry that settles, if one does."""
    state = HoldState.SETTLED if cause == EndReason.USAGE_SETTLED else HoldState.RELEASED
    if cause == EndReason.HOLD_EXPIRED:
        state = HoldState.EXPIRED
    changed = Hold.objects.filter(pk=hold.pk, state=HoldState.HELD, held=settle + release).update(
        state=state, held=0, settled=settle, released=release, closed_at=story.now, reason=cause
    )
    changed += Account.objects.filter(pk=account.pk, held__gte=settle + release).update(
        held=F("held") - (settle + release), settled=F("settled") + settle
    )
    if changed != 2:  # noqa: PLR2004 - one hold and one account
        raise LeaseqBug("a locked hold changed under its lock", hold_id=hold.pk)
    settling = _enter(hold, account, story, target=Book.SETTLED, amount=settle, cause=cause)
    _enter(hold, account, story, target=Book.AVAILABLE, amount=release, cause=cause)
    findings.close_findings(HOLD_KEPT, PAST_ITS_TIME, job=story.job, now=story.now)
    story.change(settle_at=None, settled_at=story.now)
    story.tell(
        f"hold_{state}", reason=cause, settled=str(settle), released=str(release), hold=str(hold.pk)
    )
    story.save()
    return settling


def _enter(
    hold: Hold,
    account: Account,
    story: JobStory,
    *,
    target: Book,
    amount: Decimal,
    cause: EndReason,
) -> LedgerEntry | None:
    if not amount:
        return None
    kind = EntryKind.SETTLE if target is Book.SETTLED else EntryKind.RELEASE
    return LedgerEntry.objects.create(
        key=f"{kind}:{hold.pk}",
        account=account,
        hold=hold,
        job=story.job,
        kind=kind,
        source=Book.HELD,
        target=target,
        amount=amount,
        currency=account.currency,
        actor=story.actor,
        reason=str(cause),
        at=story.now,
    )


def _keep(story: JobStory, hold: Hold, reason: KeepReason) -> None:
    """Look again later; only the first look, or a new reason, is worth an event."""
    news = findings.open_finding(
        HOLD_KEPT,
        job=story.job,
        severity="warning",
        evidence={"hold": str(hold.pk), "amount": str(hold.amount), "reason": str(reason)},
        suggested_action=KEPT_MENDS[reason],
        now=story.now,
    )
    story.change(settle_at=story.now + LOOK_AGAIN_AFTER)
    if news:
        story.tell("hold_kept", reason=reason)
    story.save()


def _expire(hold: Hold, account: Account, story: JobStory) -> str:
    verdict = rules.decide_hold_expiry(
        _expiry_facts(hold, JobState(story.job.state), story.now, possibly_owed=False)
    )
    if not isinstance(verdict, rules.ExpireHold):
        raise LeaseqBug("a hold past its time could not expire", hold_id=hold.pk)
    _move(
        hold,
        account,
        story,
        settle=Decimal(0),
        release=verdict.release,
        cause=EndReason.HOLD_EXPIRED,
    )
    return "expired"


def _expiry_facts(
    hold: Hold, job_state: JobState, now: datetime, *, possibly_owed: bool
) -> rules.HoldExpiryFacts:
    return rules.HoldExpiryFacts(
        now=now,
        expires_at=hold.expires_at,
        hold_state=HoldState(hold.state),
        hold_amount=hold.amount,
        job_state=job_state,
        possibly_sent=possibly_owed,
        has_usage=possibly_owed,
    )


def meet_expiry(job_id: UUID) -> str:
    """End a job whose hold has run out, or keep the hold where money may be owed (SPEC F2).

    The job ends here, without money; the settle pass then gives the hold back, in a transaction
    of its own. Returns `job_expired`, `kept` or `nothing_due`.
    """
    with atomic():
        locked = locks.by_job(job_id, skip_locked=True)
        if locked is None or locked.job.ended_at is not None:
            return "nothing_due"
        hold = locks.hold_of(job_id)
        if hold is None:
            raise LeaseqBug("a job has no hold", job_id=job_id)
        now = clock.read()
        job = locked.job
        owed = (
            locked.attempt.claimed_at is not None
            or Attempt.objects.filter(job=job, possibly_sent=True).exists()
            or UsageRecord.objects.filter(attempt__job=job).exists()
        )
        verdict = rules.decide_hold_expiry(
            _expiry_facts(hold, JobState(job.state), now, possibly_owed=owed)
        )
        match verdict:
            case Refused():
                return "nothing_due"
            case rules.Keep():
                findings.open_finding(
                    PAST_ITS_TIME,
                    job=job,
                    severity="warning",
                    evidence={"hold": str(hold.pk), "expired_at": hold.expires_at.isoformat()},
                    suggested_action="Nothing: the job's end settles it. Lengthen hold_ttl.",
                    now=now,
                )
                return "kept"
            case rules.ExpireHold(reason=reason):
                story = JobStory(job, actor=ACTOR, now=now)
                if isinstance(
                    endings.lose(locked, story=story, cause=reason, holder_stopped=True), Refused
                ):
                    raise LeaseqBug("a job could not expire with its hold", job_id=job_id)
                story.save()
                return "job_expired"
