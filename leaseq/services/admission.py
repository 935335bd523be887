"""Job, first Attempt and Hold, together or not at all (SPEC A2-A4, A7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Never
from uuid import UUID

from leaseq.conf import settings
from leaseq.db import admit as statements
from leaseq.db.identity import new_id
from leaseq.db.transactions import atomic
from leaseq.errors import AdmissionRefused
from leaseq.queries import leases as lease_queries
from leaseq.rules.money import BadMoney, Shortfall, decide_hold, money, plain
from leaseq.rules.payload import PayloadProblem, SoundPayload, judge_payload
from leaseq.services import ports
from leaseq.services.endings import ring_when_due
from leaseq.services.events import storable
from leaseq.vocabulary import AdmissionRefusal, NoPermit

PRIORITY_BOUND = 100
NAME_LENGTH_MAX = 200
LENGTHS = {"queue": 100, "provider": 100}
LAST_YEAR = 9000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """What a caller asks for; `not_before` is an aware instant, `cost_ceiling` exact money."""

    task: str
    queue: str
    account: str
    policy: str
    provider: str = "local"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    priority: int = 0
    cost_ceiling: Decimal | int | str | None = None
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The job that stands for the request; `created` is False where the key was known."""

    job_id: UUID
    attempt_id: UUID | None
    created: bool


class _RolledBack(Exception):  # noqa: N818 - it only leaves a transaction
    """The statement could not store all; what it did store goes back."""


def admit(request: AdmissionRequest, *, actor: str) -> Admitted:
    """Admit a job: job, attempt and hold in one transaction, or inside the caller's (SPEC A2).

    The same idempotency key with the same payload returns the first job. The scheduler is rung
    after the commit. Raises AdmissionRefused with one reason per cause, having changed nothing;
    Misconfigured where no Celery app is wired.
    """
    ports.installed()
    _check_arguments(request, actor=actor)
    payload = _sound(request)
    ceiling = None if request.cost_ceiling is None else _money(request.cost_ceiling)
    premises = _premises(request)
    if premises.known is not None:
        return _first(premises.known, request, payload)
    new = _decide(request, payload, ceiling, premises, actor=actor)
    try:
        with atomic():
            outcome = statements.store(new)
            if not (outcome.paid and outcome.stored):
                raise _RolledBack
            ring_when_due("schedule", due_at=new.not_before, now=new.now)
    except _RolledBack:
        return _first_or_refuse(request, payload, new)
    return Admitted(job_id=new.job, attempt_id=new.attempt, created=True)


def _premises(request: AdmissionRequest) -> statements.Premises:
    return statements.read_premises(
        account=request.account, policy=request.policy, key=request.idempotency_key
    )


def _sound(request: AdmissionRequest) -> SoundPayload:
    limits = settings()
    judged = judge_payload(
        {"args": list(request.args), "kwargs": dict(request.kwargs)},
        bytes_max=limits.payload_bytes_max,
        depth_max=limits.payload_depth_max,
    )
    if isinstance(judged, PayloadProblem):
        raise AdmissionRefused(
            f"the arguments of {request.task} cannot be stored: {judged.why}", reason=judged.reason
        )
    return judged


def _check_arguments(request: AdmissionRequest, *, actor: str) -> None:
    if isinstance(request.args, (str, bytes)) or not isinstance(request.args, Sequence):
        _refuse_argument(f"args is a {type(request.args).__name__} and must be a list or tuple")
    if not isinstance(request.kwargs, Mapping):
        _refuse_argument(f"kwargs is a {type(request.kwargs).__name__} and must be a mapping")
    if isinstance(request.priority, bool) or not isinstance(request.priority, int):
        _refuse_argument(f"priority is {request.priority!r} and must be a whole number")
    if abs(request.priority) > PRIORITY_BOUND:
        _refuse_argument(
            f"priority lies outside the range from -{PRIORITY_BOUND} to {PRIORITY_BOUND}"
        )
    _check_instant(request.not_before)
    _check_text("actor", actor)
    for name in ("task", "queue", "account", "policy", "provider"):
        _check_text(name, getattr(request, name))
    if request.idempotency_key is not None:
        _check_text("idempotency_key", request.idempotency_key)


def _check_instant(not_before: object) -> None:
    if not_before is None:
        return
    if not isinstance(not_before, datetime) or not_before.utcoffset() is None:
        _refuse_argument(f"not_before is {not_before!r} and must be a datetime with a time zone")
    if not_before.year > LAST_YEAR:
        _refuse_argument(f"not_before is {not_before} and must lie before the year {LAST_YEAR}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        _refuse_argument(f"{name} is {value!r} and must be text of at least one character")
    length_max = LENGTHS.get(name, NAME_LENGTH_MAX)
    if len(value) > length_max:
        _refuse_argument(f"{name} is longer than {length_max} characters")
    if value != storable(value, length_max=length_max):
        _refuse_argument(f"{name} is {value!r}, with a NUL or half of a surrogate pair in it")


def _refuse_argument(why: str) -> Never:
    raise AdmissionRefused(why, reason=AdmissionRefusal.BAD_ARGUMENT)


def _money(given: Decimal | int | str) -> Decimal:
    try:
        return money(given)
    except BadMoney as error:
        raise AdmissionRefused(
            f"cost_ceiling: {error}", reason=AdmissionRefusal.BAD_MONEY
        ) from error


def _decide(
    request: AdmissionRequest,
    payload: SoundPayload,
    ceiling: Decimal | None,
    premises: statements.Premises,
    *,
    actor: str,
) -> statements.NewJob:
    account, policy, now = premises.account, premises.policy, premises.now
    if account is None:
        raise AdmissionRefused(
            f"there is no account {request.account!r}; create it in the admin",
            reason=AdmissionRefusal.UNKNOWN_ACCOUNT,
        )
    if policy is None:
        raise AdmissionRefused(
            f"there is no serving policy {request.policy!r}; create it in the admin",
            reason=AdmissionRefusal.UNKNOWN_POLICY,
        )
    if not account.is_open:
        raise AdmissionRefused(
            f"the account {request.account!r} is closed; open it in the admin",
            reason=AdmissionRefusal.ACCOUNT_CLOSED,
        )
    if not policy.is_open:
        raise AdmissionRefused(
            f"the policy {request.policy!r} is closed; open it in the admin",
            reason=AdmissionRefusal.POLICY_CLOSED,
        )
    amount = policy.cost_ceiling if ceiling is None else ceiling
    if amount is None:
        raise AdmissionRefused(
            f"neither the call nor the policy {request.policy!r} names a cost ceiling, and "
            "unbounded work is not admitted: pass cost_ceiling, 0 for free work",
            reason=AdmissionRefusal.NO_COST_CEILING,
        )
    if policy.when_no_permit == NoPermit.REFUSE:
        _demand_permit(request)
    not_before = max(now, request.not_before or now)
    return statements.NewJob(
        job=new_id(),
        attempt=new_id(),
        hold=new_id(),
        account=account.id,
        policy=policy.id,
        task=request.task,
        queue=request.queue,
        provider=request.provider,
        payload=payload.text,
        digest=payload.digest,
        key=request.idempotency_key,
        priority=request.priority,
        amount=amount,
        now=now,
        not_before=not_before,
        queue_deadline=not_before + policy.queue_age_max,
        queue_age_max=policy.queue_age_max,
        hold_expires=not_before + policy.hold_ttl,
        actor=actor,
    )


def _demand_permit(request: AdmissionRequest) -> None:
    full = lease_queries.full_pools(
        account=request.account,
        queue=request.queue,
        policy=request.policy,
        provider=request.provider,
    )
    if full:
        raise AdmissionRefused(
            f"no permit is free in {', '.join(full)}, and the policy {request.policy!r} does not "
            "let jobs wait for one; try again later",
            reason=AdmissionRefusal.NO_PERMIT_FREE,
        )


def _first_or_refuse(
    request: AdmissionRequest, payload: SoundPayload, new: statements.NewJob
) -> Admitted:
    """Answer for what was rolled back: the key is known by now, or the money is not there."""
    premises = _premises(request)
    if premises.known is not None:
        return _first(premises.known, request, payload)
    account = premises.account
    if account is None or not account.is_open:
        raise AdmissionRefused(
            f"the account {request.account!r} is closed", reason=AdmissionRefusal.ACCOUNT_CLOSED
        )
    verdict = decide_hold(
        limit=account.limit, held=account.held, settled=account.settled, amount=new.amount
    )
    shortfall = verdict.missing if isinstance(verdict, Shortfall) else Decimal(0)
    free = account.limit - account.held - account.settled
    raise AdmissionRefused(
        f"the account {request.account!r} has {plain(free)} {account.currency} free and the job "
        f"needs {plain(new.amount)}: {plain(shortfall)} short; lower cost_ceiling, raise the "
        f"limit, or wait until holds of {plain(account.held)} end",
        reason=AdmissionRefusal.INSUFFICIENT_FUNDS,
        shortfall=shortfall,
    )


def _first(
    known: statements.KnownJob, request: AdmissionRequest, payload: SoundPayload
) -> Admitted:
    if (known.task, known.digest) != (request.task, payload.digest):
        raise AdmissionRefused(
            f"the idempotency key {request.idempotency_key!r} was used for another request of "
            "this account; use a new key",
            reason=AdmissionRefusal.KEY_REUSED,
            job_id=known.id,
        )
    return Admitted(job_id=known.id, attempt_id=None, created=False)
