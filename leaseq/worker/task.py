"""leased_task: declared like a shared_task, and delay() admits a job instead of publishing (D1)."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar, overload
from uuid import UUID

from celery import Task, current_app, shared_task
from celery.result import EagerResult
from django.db import InterfaceError, OperationalError

from leaseq.conf import settings
from leaseq.controllers import serve
from leaseq.db import clock
from leaseq.errors import AdmissionRefused, Misconfigured, Unavailable
from leaseq.services import admission
from leaseq.services.admission import AdmissionRequest, Admitted
from leaseq.vocabulary import AdmissionRefusal
from leaseq.worker import runner

ACTOR = "caller"
G = TypeVar("G")
REFUSED_AT_DECLARATION = {
    "acks_late": "a message is acknowledged early, and the lease is the liveness; leave it out",
    "bind": "its first argument is a handle of the lease with takes_lease=True",
    "base": "it has a base of its own; wrap the function instead",
    "priority": "a job's priority is named when it is admitted, by .using(priority=)",
    "max_retries": "set attempts_max of its serving policy",
    "default_retry_delay": "set retry_base and retry_cap of its serving policy",
    "expires": "set queue_age_max of its serving policy",
}


class _Inline(threading.local):
    """Whether this thread is inside `apply`."""

    active = False


_inline = _Inline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a job is admitted; what is None comes from the task, then from LEASEQ."""

    account: str | None = None
    policy: str | None = None
    queue: str | None = None
    idempotency_key: str | None = None
    priority: int = 0
    cost_ceiling: Decimal | int | str | None = None
    not_before: datetime | None = None


class LeasedTask(Task[Any, Any]):
    """A Celery task whose calls are jobs: admitted, leased, fenced and settled (SPEC D1)."""

    abstract = True
    acks_late = False
    provider = runner.LOCAL
    takes_lease = False
    options = Options()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run inline when called like a function, else as the attempt that the message names.

        A task that calls itself while it runs is called like a function.
        """
        if self._is_called_inline() or runner.runs_here(UUID(self.request.id)):
            return self.run(*args, **kwargs)
        return runner.deliver(self, UUID(self.request.id))

    # What comes back is a job, not the result of a message.
    def delay(self, *args: Any, **kwargs: Any) -> Admitted:  # type: ignore[override]
        """Admit a job with these arguments; raises AdmissionRefused."""
        return self.admit(args, kwargs)

    def apply_async(  # type: ignore[override]
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> Admitted:
        """Admit a job; `countdown` (seconds) and `eta` become its not_before, in the database.

        Raises AdmissionRefused, Misconfigured for an option of Celery that a job cannot have, and
        Unavailable where the database does not answer.
        """
        chosen = _replaced(self.options, options)
        if countdown is not None:
            chosen = replace(chosen, not_before=_in_so_many_seconds(countdown))
        elif eta is not None:
            chosen = replace(chosen, not_before=eta)
        return self.admit_with(
            chosen, () if args is None else args, {} if kwargs is None else kwargs
        )

    def using(self, **options: Any) -> "BoundTask":
        """Return this task with other options: account, policy, priority or cost_ceiling."""
        return BoundTask(self, _replaced(self.options, options))

    def admit(self, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any) -> Admitted:
        """Admit a job of this task; raises AdmissionRefused or Misconfigured."""
        return self.admit_with(_replaced(self.options, options), args, kwargs)

    def admit_with(
        self, chosen: Options, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Admitted:
        """Admit a job with exactly these options.

        Raises AdmissionRefused, Misconfigured, and Unavailable where the database does not answer.
        """
        self._check_signature(args, kwargs)
        if self.provider != runner.LOCAL:
            # A job that no provider could serve would only fail in a worker, hours later.
            serve.provider(self.provider)
        defaults = settings()
        account = _first_given(chosen.account, defaults.default_account)
        if account is None:
            raise AdmissionRefused(
                f"no account is named for {self.name}: pass account=, name one in leased_task, or "
                "set LEASEQ['DEFAULT_ACCOUNT']",
                reason=AdmissionRefusal.UNKNOWN_ACCOUNT,
            )
        request = AdmissionRequest(
            task=self.name,
            queue=_first_given(chosen.queue, defaults.default_queue),
            account=account,
            policy=_first_given(chosen.policy, defaults.default_policy),
            provider=self.provider,
            args=args,
            kwargs=kwargs,
            idempotency_key=chosen.idempotency_key,
            priority=chosen.priority,
            cost_ceiling=chosen.cost_ceiling,
            not_before=chosen.not_before,
        )
        with _demanding_an_answer():
            return admission.admit(request, actor=ACTOR)

    def apply(self, *args: Any, **kwargs: Any) -> EagerResult[Any]:
        """Run inline, as Celery's `apply` does; there is no job and no lease."""
        before, _inline.active = _inline.active, True
        try:
            return super().apply(*args, **kwargs)
        finally:
            _inline.active = before

    def retry(self, *_args: Any, exc: BaseException | None = None, **_options: Any) -> Any:
        """End this attempt and let the job be tried again, within its policy's attempts_max.

        Called inline there is no attempt: `exc` is raised as it is.
        """
        if self._is_called_inline():
            raise exc or RuntimeError(f"{self.name} asked for a retry outside a worker")
        raise runner.RetryAsked("the task asked for a retry") from exc

    def _is_called_inline(self) -> bool:
        # Not `request.is_eager`: a message may claim that, and would run without a lease.
        return _inline.active or bool(self.request.called_directly)

    def _check_signature(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            given = [None, *args] if self.takes_lease else list(args)
            inspect.signature(self.run).bind(*given, **kwargs)
        except TypeError as error:
            raise AdmissionRefused(
                f"{self.name} does not take these arguments: {error}",
                reason=AdmissionRefusal.BAD_ARGUMENT,
            ) from error


@dataclass(frozen=True, slots=True)
class BoundTask:
    """A leased task with options of its own, as `using` returns it."""

    task: LeasedTask
    options: Options

    def delay(self, *args: Any, **kwargs: Any) -> Admitted:
        """Admit a job with these arguments; raises AdmissionRefused."""
        return self.task.admit_with(self.options, args, kwargs)


@contextmanager
def _demanding_an_answer() -> Iterator[None]:
    """Raise Unavailable where the database is away."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise Unavailable(
            f"the database does not answer ({error}), so nothing was admitted; see that "
            "PostgreSQL runs and that DATABASES points to it, then try again with the same "
            "idempotency_key"
        ) from error


def _in_so_many_seconds(countdown: float) -> datetime:
    try:
        wait = timedelta(seconds=countdown)
        with _demanding_an_answer():
            return clock.read() + wait
    except (TypeError, ValueError, OverflowError) as error:
        raise AdmissionRefused(
            f"countdown is {countdown!r} and must be a number of seconds from now",
            reason=AdmissionRefusal.BAD_ARGUMENT,
        ) from error


def _first_given(chosen: G | None, default: G) -> G:
    """Return what was chosen, be it empty (which admission refuses), else the default."""
    return default if chosen is None else chosen


def _replaced(base: Options, options: Mapping[str, Any]) -> Options:
    known = set(Options.__slots__)
    unknown = sorted(set(options) - known)
    if unknown:
        raise Misconfigured(
            f"a leased task has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}, "
            "countdown and eta. What Celery would do with it, a policy or a second job does here; "
            "from a beat schedule or a canvas, let a plain task call delay()"
        )
    return replace(base, **options)


@overload
def leased_task(function: Callable[..., Any], /) -> LeasedTask: ...


@overload
def leased_task(
    *,
    provider: str = ...,
    takes_lease: bool = ...,
    account: str | None = ...,
    policy: str | None = ...,
    queue: str | None = ...,
    cost_ceiling: Decimal | int | str | None = ...,
    **celery_options: Any,
) -> Callable[[Callable[..., Any]], LeasedTask]: ...


def leased_task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    provider: str = runner.LOCAL,
    takes_lease: bool = False,
    account: str | None = None,
    policy: str | None = None,
    queue: str | None = None,
    cost_ceiling: Decimal | int | str | None = None,
    **celery_options: Any,
) -> Any:
    """Declare a leased task, with or without options; other options are Celery's (SPEC D1).

    With `takes_lease` the function's first argument is its `Lease`. `provider` names an entry of
    LEASEQ['PROVIDERS'] that `lease.infer` sends to, or `local`. Raises Misconfigured for an
    option that would undo the lease.
    """
    for name, mend in REFUSED_AT_DECLARATION.items():
        if name in celery_options:
            raise Misconfigured(f"leased_task takes no {name}: {mend}")
    options = Options(account=account, policy=policy, queue=queue, cost_ceiling=cost_ceiling)
    declared: Any = shared_task(
        base=LeasedTask,
        provider=provider,
        takes_lease=takes_lease,
        options=options,
        **celery_options,
    )
    return declared if function is None else declared(function)


def find(name: str) -> LeasedTask:
    """Return a leased task by its name; raises AdmissionRefused where there is none."""
    tasks = current_app.tasks
    if name not in tasks:
        current_app.loader.import_default_modules()
    found = tasks.get(name)
    if not isinstance(found, LeasedTask):
        kind = "no task" if found is None else "a plain Celery task, not a leased one,"
        raise AdmissionRefused(
            f"there is {kind} named {name!r}; declare it with leased_task in an installed app's "
            "tasks module",
            reason=AdmissionRefusal.UNKNOWN_TASK,
        )
    return found
