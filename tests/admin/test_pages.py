"""Every list and page answers whom it should, shows every field, and costs what it should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, quote
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import leaseq_admin
from leaseq.models import Account, Attempt, Finding, Job, JobEvent, Lease
from leaseq.services import cancellation
from leaseq.services.attempts import Claimed
from leaseq.services.workers import Registered
from leaseq_admin.admin import base
from tests.admin.rows import CANARY, MODELS, request
from tests.services import stages

pytestmark = pytest.mark.django_db
NAMES = [model.__name__ for model in MODELS]
QUERIES_MAX = 12


def list_of(model: type[Model]) -> str:
    return reverse(f"admin:leaseq_{model.__name__.lower()}_changelist")


def page_of(row: Model) -> str:
    return reverse(f"admin:leaseq_{type(row).__name__.lower()}_change", args=[quote(row.pk)])


def shown_by(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, url
    return response.content.decode()


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_every_model_is_registered_with_every_one_of_its_fields(model: type[Model]) -> None:
    fields = admin.site.get_model_admin(model).fieldsets
    named: set[Any] = set(flatten_fieldsets(fields or ()))
    derived = {
        "Lease": {"fence_epoch", "fence", "worker"},  # shown as fencing token and owner
    }.get(model.__name__, set())
    assert {one.name for one in model._meta.concrete_fields} <= named | derived


def test_lists_and_pages_answer_whoever_may_see_them_and_send_others_to_log_in(
    superuser: Client, viewer: Client, fill: Callable[..., None]
) -> None:
    fill(1, first=0)
    for model in MODELS:
        row = model._default_manager.first()
        assert row is not None, model
        for url in (list_of(model), page_of(row)):
            assert superuser.get(url).status_code == 200, url
            assert viewer.get(url).status_code == 200, url
            response = Client().get(url)
            assert response.status_code == 302
            assert "/login/" in response.headers["Location"]


def test_a_list_costs_the_same_few_queries_for_ten_rows_and_for_a_hundred(
    superuser: Client, fill: Callable[..., None]
) -> None:
    fill(10, first=0)
    with_ten = {model.__name__: queries_of(superuser, list_of(model)) for model in MODELS}
    fill(90, first=10)
    assert Lease.objects.count() == Attempt.objects.count() == 100
    with_hundred = {model.__name__: queries_of(superuser, list_of(model)) for model in MODELS}
    assert with_hundred == with_ten
    assert max(with_hundred.values()) <= QUERIES_MAX


def queries_of(client: Client, url: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        shown_by(client, url)
    return len(captured)


def test_a_list_counts_no_further_than_its_cap_and_says_so(
    superuser: Client, admit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "COUNT_MAX", 2)
    for _ in range(3):
        admit()
    with CaptureQueriesContext(connection) as captured:
        page = shown_by(superuser, list_of(Job))
    assert "2+ rows" in page
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"]]
    assert counts
    assert all("LIMIT 3" in sql for sql in counts)


def test_a_list_within_its_cap_says_how_many_there_are(superuser: Client, job: Job) -> None:
    page = shown_by(superuser, list_of(Job))
    assert "1 job" in page
    assert "+ rows" not in page


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda job: str(job.pk), id="whole id"),
        pytest.param(lambda job: job.pk.hex.upper(), id="whole id otherwise written"),
        pytest.param(lambda job: f"…{str(job.pk)[-12:]}", id="end of the id as lists show it"),
        pytest.param(lambda job: "order-1", id="idempotency key"),
    ],
)
def test_a_job_is_found_by(
    write: Callable[[Job], str], superuser: Client, admit: Callable[..., Job]
) -> None:
    wanted, other = admit(idempotency_key="order-1"), admit(idempotency_key="order-10")
    found = superuser.get(list_of(Job), {"q": write(wanted)}).content.decode()
    assert str(wanted.pk) in found
    assert str(other.pk) not in found


@pytest.mark.parametrize("term", ["order", "%", "\x00", "'", "9" * 40, "zzz…"])
def test_a_search_for_what_is_not_there_finds_nothing(
    term: str, superuser: Client, admit: Callable[..., Job]
) -> None:
    job = admit(idempotency_key="order-1")
    for model in MODELS:
        response = superuser.get(list_of(model), {"q": term})
        assert response.status_code == 200
        assert f'title="{job.pk}"' not in response.content.decode() or term == "\x00"


@pytest.mark.parametrize("name", ["queue", "account", "policy", "task"])
def test_a_typed_filter_keeps_the_rows_of_exactly_that_name(
    name: str, superuser: Client, job: Job
) -> None:
    values = {"queue": "gpu", "account": "acme", "policy": "batch", "task": "tests.nothing"}
    link = page_of(job)
    kept = superuser.get(list_of(Job), {name: values[name], "state__exact": "admitted"})
    assert link in kept.content.decode()
    assert '<input type="hidden" name="state__exact" value="admitted">' in kept.content.decode()
    for other in (values[name][:-1], f"{values[name]}\x00x", CANARY):
        left_out = superuser.get(list_of(Job), {name: other})
        assert left_out.status_code == 200
        assert link not in left_out.content.decode()
        assert CANARY not in left_out.content.decode()


def test_what_callers_workers_and_providers_said_is_shown_and_never_run(
    superuser: Client, admit: Callable[..., Job], worker: Registered
) -> None:
    job = admit(task=CANARY, kwargs={"prompt": CANARY}, idempotency_key=CANARY)
    stages.queue_up()
    attempt = job.attempts.get()
    request(attempt, provider=CANARY, model=CANARY, detail=CANARY, provider_request_id=CANARY)
    Attempt.objects.filter(pk=attempt.pk).update(error=CANARY, progress={CANARY: CANARY})
    Finding.objects.create(
        kind=CANARY,
        severity="<script>",
        job=job,
        evidence={CANARY: CANARY},
        suggested_action=CANARY,
        opened_at=job.submitted_at,
    )
    cancellation.ask(job.pk, actor=f"user:{CANARY}", reason=CANARY)
    for model in MODELS:
        pages = [list_of(model), *(page_of(row) for row in model._default_manager.all()[:3])]
        for url in pages:
            assert CANARY not in shown_by(superuser, url), url
    page = shown_by(superuser, page_of(job))
    for place in (f"{CANARY} ", f"user:{CANARY}", f'"prompt": "{CANARY}"'):
        assert place.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;") in page


def test_a_job_page_tells_its_whole_story_and_leads_to_all_of_it(
    superuser: Client, fill: Callable[..., None]
) -> None:
    fill(1, first=0)
    job = Job.objects.get()
    page = shown_by(superuser, page_of(job))
    events = JobEvent.objects.filter(job=job).order_by("version")
    assert events.count() >= 3
    places = [page.index(f'href="{page_of(event)}"') for event in events]
    assert places == sorted(places)
    rows: list[Model] = [
        job.account,
        job.policy,
        *job.attempts.all(),
        *job.leases.all(),
        *job.holds.all(),
        *job.entries.all(),
        *job.findings.all(),
        *Attempt.objects.get(job=job).usage_records.all(),
    ]
    for row in rows:
        assert f'href="{page_of(row)}"' in page, row
    for row in [*job.attempts.all(), *job.leases.all(), *job.holds.all(), *job.entries.all()]:
        assert f'href="{page_of(job)}"' in shown_by(superuser, page_of(row)), row


def test_a_job_page_costs_the_same_queries_however_long_its_story_is(
    superuser: Client, claimed: Claimed, admit: Callable[..., Job]
) -> None:
    waiting = admit()
    # Django looks its content types up once a process, whichever page comes first.
    queries_of(superuser, page_of(waiting))
    assert queries_of(superuser, page_of(Job.objects.get(pk=claimed.job_id))) == queries_of(
        superuser, page_of(waiting)
    )


def test_a_live_lease_shows_its_time_left_and_its_exact_end(
    superuser: Client, claimed: Claimed
) -> None:
    lease = Lease.objects.get(pk=claimed.proof.lease_id)
    for url in (list_of(Lease), page_of(lease), page_of(lease.job)):
        page = shown_by(superuser, url)
        exact = lease.expires_at.isoformat(sep=" ")
        _, _, after = page.partition(f'title="{exact}">')
        assert after, url
        assert after.partition("<")[0] in {f"{seconds} s" for seconds in range(15, 31)}


def test_an_account_shows_money_exactly_and_without_zeros_that_say_nothing(
    superuser: Client, job: Job
) -> None:
    Account.objects.filter(pk=job.account_id).update(settled="0.000000001")
    for url in (list_of(Account), page_of(job.account)):
        page = shown_by(superuser, url)
        for amount in ("1.00 EUR", "0.000000001 EUR", "98.999999999 EUR"):
            assert f">{amount}<" in page, url


def test_the_pages_own_files_hold_nothing_inline() -> None:
    folder = Path(leaseq_admin.__file__).parent / "templates"
    templates = list(folder.rglob("*.html"))
    assert templates
    for path in templates:
        text = path.read_text(encoding="utf-8").lower()
        for forbidden in ("<script", "<style", "style=", " onclick", " onchange", "|safe"):
            assert forbidden not in text, path
