"""A leased task is declared like a shared_task, and its calls are jobs (SPEC D1, A2, A7)."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from celery import chain, group, shared_task
from django.db import transaction
from pytest_django import Settings

from leaseq import api
from leaseq.api import AdmissionRefused, Lease, Misconfigured, Unavailable, leased_task
from leaseq.db import clock
from leaseq.models import Account, Job, ServingPolicy
from leaseq.services import ports
from leaseq.vocabulary import AdmissionRefusal, JobState
from leaseq.worker.task import LeasedTask, find
from tests.conftest import RecordingPorts
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


@leased_task
def bare(left: int, right: int = 0) -> int:
    """Declared without parentheses."""
    return left + right


@leased_task(
    takes_lease=True, account="acme", policy="batch", queue="gpu", cost_ceiling="0.25",
    name="tests.task.full",
)  # fmt: skip
def full(lease: Lease, text: str) -> str:
    """Declared with all of its options."""
    return f"{lease}: {text}"


@leased_task(name="tests.task.impatient")
def impatient(*, patient: bool) -> str:
    """Ask for a retry unless told to be patient."""
    if not patient:
        raise impatient.retry(exc=ValueError("not yet"))
    return "done"


@leased_task(name="tests.task.aimless")
def aimless() -> None:
    """Ask for a retry and say no cause."""
    raise aimless.retry()


@shared_task(name="tests.task.plain")
def plain() -> None:
    """Be a task of plain Celery."""


@pytest.fixture(autouse=True)
def caller(account: Account, policy: ServingPolicy, settings: Settings) -> None:
    """The account acme and the policy batch are what nobody needs to name."""
    settings.LEASEQ = settings.LEASEQ | {"DEFAULT_ACCOUNT": "acme", "DEFAULT_POLICY": "batch"}


def loosely(*args: Any, **options: Any) -> Any:
    """Call as code does that nobody checked."""
    return bare.apply_async(*args, **options)


def the_job() -> Job:
    return Job.objects.get()


# -- declared ----------------------------------------------------------------------------------


def test_a_task_may_be_declared_without_parentheses() -> None:
    admitted = bare.delay(1, right=2)

    job = the_job()
    assert (admitted.job_id, admitted.created) == (job.pk, True)
    assert (job.task, job.queue, job.provider) == (f"{__name__}.bare", "leaseq", "local")
    assert job.payload == {"args": [1], "kwargs": {"right": 2}}
    assert (job.account.name, job.policy.name, job.priority) == ("acme", "batch", 0)
    assert job.holds.get().amount == Decimal(1)


def test_a_task_may_be_declared_with_options() -> None:
    full.delay("hello")
    job = the_job()
    assert (job.task, job.queue) == ("tests.task.full", "gpu")
    assert job.payload == {"args": ["hello"], "kwargs": {}}
    assert job.holds.get().amount == Decimal("0.25")


@pytest.mark.parametrize(
    "option",
    ["acks_late", "bind", "base", "priority", "max_retries", "default_retry_delay", "expires"],
)
def test_an_option_that_would_undo_the_lease_is_refused_with_its_mend(option: str) -> None:
    declare: Callable[..., Any] = leased_task
    with pytest.raises(Misconfigured, match=f"takes no {option}: .*(leave|with|wrap|by|set)"):
        declare(**{option: True})


def test_an_option_of_celery_that_does_no_harm_is_kept() -> None:
    declared = leased_task(name="tests.task.kept", rate_limit="3/m", soft_time_limit=9)(bare.run)
    assert (declared.rate_limit, declared.soft_time_limit) == ("3/m", 9)


# -- admitted ----------------------------------------------------------------------------------


def test_the_scheduler_is_rung_once_the_callers_transaction_has_committed(
    recording_ports: RecordingPorts, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        bare.delay(1)
        assert the_job().state == JobState.ADMITTED
        assert recording_ports.rings == []
    assert (recording_ports.rings, recording_ports.doorbells) == (["schedule"], [])


def test_a_job_goes_with_the_transaction_it_was_admitted_in(
    recording_ports: RecordingPorts, django_capture_on_commit_callbacks: Any
) -> None:
    before = photograph()

    def admit_and_fail() -> None:
        with transaction.atomic():
            bare.delay(1)
            raise ValueError("the caller's own error")

    with django_capture_on_commit_callbacks(execute=True), pytest.raises(ValueError, match="own"):
        admit_and_fail()
    assert (photograph(), recording_ports.rings) == (before, [])


def test_a_refusal_leaves_the_callers_transaction_usable() -> None:
    with transaction.atomic():
        with pytest.raises(AdmissionRefused):
            bare.using(cost_ceiling=101).delay(1)
        bare.delay(2)
    assert the_job().payload["args"] == [2]


@pytest.mark.parametrize("seconds", [0, 90, 0.5, -5])
def test_a_countdown_becomes_the_earliest_time_of_the_job(seconds: float) -> None:
    before = clock.read()
    bare.apply_async((1,), {"right": 2}, countdown=seconds)
    after = clock.read()
    job = the_job()
    wait = timedelta(seconds=max(0, seconds))
    assert job.not_before is not None
    assert before + wait <= job.not_before <= after + wait
    assert job.payload == {"args": [1], "kwargs": {"right": 2}}


def test_an_eta_becomes_the_earliest_time_of_the_job() -> None:
    due = datetime(2999, 1, 1, tzinfo=UTC)
    bare.apply_async([1], eta=due)
    assert the_job().not_before == due


def test_options_may_be_named_at_the_call_or_beforehand() -> None:
    options: dict[str, Any] = {
        "priority": 7,
        "idempotency_key": "k",
        "queue": "other",
        "cost_ceiling": 3,
    }
    first = bare.apply_async([1], **options)
    job = the_job()
    assert (job.priority, job.idempotency_key, job.queue) == (7, "k", "other")
    assert job.holds.get().amount == 3

    again = bare.using(**options).delay(1)
    assert (again.job_id, again.created, first.created) == (job.pk, False, True)
    assert Job.objects.count() == 1


def test_using_changes_nothing_of_the_task_itself() -> None:
    bare.using(priority=7)
    bare.delay(1)
    assert the_job().priority == 0


def test_the_door_admits_by_name() -> None:
    admitted = api.admit("tests.task.full", args=["hi"], priority=3, idempotency_key="k")
    job = api.job(admitted.job_id)
    assert (job.task, job.queue, job.priority) == ("tests.task.full", "gpu", 3)
    assert api.cancel(job.pk, actor="user:test", reason="enough") == JobState.CANCELLED


# -- refused, and nothing stored ---------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"link": "x"}, {"chord": "x"}, {"expires": 5}, {"task_id": "x"}, {"producer": None},
        {"routing_key": "x"}, {"priorty": 3}, {"countdown": 1, "link_error": "x"},
    ],
    ids=" and ".join,
)  # fmt: skip
def test_what_a_job_cannot_have_is_refused_with_the_mend(options: dict[str, Any]) -> None:
    before = photograph()
    unknown = next(name for name in options if name != "countdown")
    with pytest.raises(Misconfigured, match=rf"no option {unknown}; it has account.*a policy or"):
        bare.apply_async([1], **options)
    if "countdown" not in options:
        with pytest.raises(Misconfigured, match=unknown):
            bare.using(**options)
    assert photograph() == before


@pytest.mark.parametrize(
    "canvas",
    [
        lambda: chain(bare.s(1), bare.s(2)),
        lambda: group(bare.s(1), bare.s(2)),
    ],
    ids=["chain", "group"],
)
def test_a_canvas_of_leased_tasks_is_refused_whole(canvas: Callable[[], Any]) -> None:
    before = photograph()
    with pytest.raises(Misconfigured, match="let a plain task call delay"):
        canvas().apply_async()
    assert photograph() == before


def test_a_single_signature_admits_a_job() -> None:
    bare.s(1, right=2).apply_async()
    assert the_job().payload == {"args": [1], "kwargs": {"right": 2}}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(bare.delay, id="an argument is missing"),
        pytest.param(lambda: bare.delay(1, 2, 3), id="one too many"),
        pytest.param(lambda: bare.delay(1, wrong=2), id="an unknown keyword"),
        pytest.param(lambda: full.delay("lease", "text"), id="the lease is not the caller's"),
        pytest.param(lambda: loosely(5), id="args are a number"),
        pytest.param(lambda: bare.apply_async("ab"), id="args are a text"),
        pytest.param(lambda: loosely([1], 5), id="kwargs are a number"),
        pytest.param(lambda: loosely([1], countdown="soon"), id="countdown is a text"),
        pytest.param(lambda: bare.apply_async([1], countdown=float("nan")), id="and not a number"),
        pytest.param(lambda: bare.apply_async([1], countdown=1e300), id="and out of all bounds"),
        pytest.param(
            lambda: bare.apply_async([1], eta=datetime(2999, 1, 1)),  # noqa: DTZ001
            id="eta has no time zone",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call: Callable[[], Any]) -> None:
    before = photograph()
    with pytest.raises(AdmissionRefused) as refused:
        call()
    assert refused.value.reason is AdmissionRefusal.BAD_ARGUMENT
    assert photograph() == before


def test_a_call_that_names_no_account_says_where_one_is_named(settings: Settings) -> None:
    settings.LEASEQ = settings.LEASEQ | {"DEFAULT_ACCOUNT": None}
    before = photograph()
    with pytest.raises(AdmissionRefused, match=r"pass account=.*DEFAULT_ACCOUNT") as refused:
        bare.delay(1)
    assert refused.value.reason is AdmissionRefusal.UNKNOWN_ACCOUNT
    assert photograph() == before
    bare.using(account="acme").delay(1)
    assert the_job().account.name == "acme"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.task.plain", "a plain Celery task, not a leased one, named 'tests.task.plain'"),
        ("tests.task.nowhere", "no task named 'tests.task.nowhere'"),
    ],
)
def test_a_name_that_no_leased_task_has_is_refused(name: str, says: str) -> None:
    before = photograph()
    with pytest.raises(AdmissionRefused, match=says) as refused:
        api.admit(name)
    assert refused.value.reason is AdmissionRefusal.UNKNOWN_TASK
    assert photograph() == before


def test_a_leased_task_is_found_by_its_name() -> None:
    found = find("tests.task.full")
    assert isinstance(found, LeasedTask)
    assert (found.name, found.takes_lease, found.options.queue) == ("tests.task.full", True, "gpu")


# -- called inline -----------------------------------------------------------------------------


def test_called_like_a_function_it_runs_inline() -> None:
    before = photograph()
    assert bare(1, right=2) == 3
    assert impatient(patient=True) == "done"
    assert photograph() == before


def test_apply_runs_it_inline_and_keeps_no_trace_of_it() -> None:
    before = photograph()
    assert bare.apply((1,), {"right": 2}).get() == 3
    assert impatient.apply(kwargs={"patient": True}).result == "done"
    assert photograph() == before


def test_a_retry_outside_a_worker_raises_its_cause() -> None:
    with pytest.raises(ValueError, match="not yet"):
        impatient(patient=False)
    with pytest.raises(RuntimeError, match=r"tests\.task\.aimless asked for a retry outside"):
        aimless()
    applied = impatient.apply(kwargs={"patient": False})
    assert (applied.state, str(applied.result)) == ("FAILURE", "not yet")


# -- what is not there -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [lambda: bare.delay(1), lambda: bare.apply_async([1], countdown=5)],
    ids=["at once", "later"],
)
def test_without_a_database_a_call_is_unavailable_and_says_what_to_do(
    call: Callable[[], Any], without_database: Callable[[Callable[[], Any]], Any]
) -> None:
    before = photograph()
    with pytest.raises(Unavailable, match="see that PostgreSQL runs") as raised:
        without_database(call)
    assert raised.value.__cause__ is not None
    assert photograph() == before


@pytest.fixture
def without_ports() -> Iterator[None]:
    """No Celery app was wired into this process."""
    installed = ports.installed()
    ports._installed.clear()
    yield
    ports.install(installed)


@pytest.mark.usefixtures("without_ports")
def test_without_a_wired_app_a_call_says_how_to_wire_it() -> None:
    before = photograph()
    with pytest.raises(Misconfigured, match=r"wiring\.install\(app\)"):
        bare.delay(1)
    assert photograph() == before
