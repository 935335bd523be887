"""Jobs are cancelled from their list: with a reason, one by one, as everywhere else (case S1)."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from leaseq.db.identity import new_id
from leaseq.models import Hold, Job, JobEvent
from leaseq.services import attempts
from leaseq.services.attempts import Claimed
from leaseq_admin import actions
from leaseq_admin.actions import ROWS_MAX

pytestmark = pytest.mark.django_db


def post(client: Client, ids: Sequence[object], **posted: str) -> Any:
    url = reverse("admin:leaseq_job_changelist")
    keys = [str(one) for one in ids]
    return client.post(url, {"action": "cancel_selected", ACTION_CHECKBOX_NAME: keys, **posted})


def confirm(client: Client, ids: Sequence[object], *, reason: str = "no longer needed") -> Any:
    return post(client, ids, confirmed="yes", reason=reason)


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def photograph() -> list[Any]:
    return [list(model.objects.order_by("pk").values()) for model in (Job, Hold, JobEvent)]


def state_of(job_id: UUID) -> str:
    return str(Job.objects.get(pk=job_id).state)


def test_the_action_first_asks_why_and_changes_nothing(operator: Client, job: Job) -> None:
    before = photograph()
    response = post(operator, [job.pk])
    page = response.content.decode()
    assert response.status_code == 200
    assert 'name="reason"' in page
    assert f'name="{ACTION_CHECKBOX_NAME}" value="{job.pk}"' in page
    assert photograph() == before


@pytest.mark.parametrize("reason", ["", "   ", "x" * 301, "nul\x00nul"])
def test_without_a_sound_reason_nothing_is_cancelled(
    reason: str, operator: Client, job: Job
) -> None:
    before = photograph()
    response = confirm(operator, [job.pk], reason=reason)
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert photograph() == before


def test_a_waiting_job_is_cancelled_by_whom_and_why(operator: Client, job: Job) -> None:
    response = confirm(operator, [job.pk])
    assert response.status_code == 302
    assert said(response) == [f"Job {job.pk}: cancelled."]
    assert state_of(job.pk) == "cancelled"
    asked = JobEvent.objects.get(job=job, kind="cancel_asked")
    assert (asked.actor, asked.reason) == ("user:olga", "no longer needed")


def test_each_selected_job_gets_its_own_answer(
    operator: Client, begun: Claimed, admit: Callable[..., Job]
) -> None:
    waiting, completed = admit(), Job.objects.get(pk=begun.job_id)
    attempts.complete(begun.proof, result="done")
    unknown = new_id()
    before = JobEvent.objects.filter(job=completed).count()
    response = confirm(operator, [waiting.pk, completed.pk, unknown])
    assert said(response) == [
        f"Job {waiting.pk}: cancelled.",
        f"Job {completed.pk}: not cancelled: the job is completed.",
        f"Job {unknown}: no such job.",
    ]
    assert (state_of(waiting.pk), state_of(completed.pk)) == ("cancelled", "completed")
    assert JobEvent.objects.filter(job=completed).count() == before


def test_a_running_job_is_asked_to_stop_and_asking_again_adds_nothing(
    operator: Client, begun: Claimed
) -> None:
    assert "asked to stop; it is running" in said(confirm(operator, [begun.job_id]))[0]
    assert Job.objects.get(pk=begun.job_id).cancel_asked_at is not None
    before = photograph()
    assert "asked to stop; it is running" in said(confirm(operator, [begun.job_id]))[0]
    assert photograph() == before


def test_a_job_that_left_the_filtered_list_meanwhile_gets_its_answer_too(
    operator: Client, begun: Claimed
) -> None:
    attempts.complete(begun.proof, result="done")
    url = reverse("admin:leaseq_job_changelist") + "?state__exact=running"
    posted = {"action": "cancel_selected", "confirmed": "yes", "reason": "too slow"}
    response = operator.post(url, posted | {ACTION_CHECKBOX_NAME: str(begun.job_id)})
    assert said(response) == [f"Job {begun.job_id}: not cancelled: the job is completed."]


@pytest.mark.parametrize("confirmed", [False, True])
def test_more_jobs_than_one_page_are_refused_whole(
    confirmed: bool, operator: Client, admit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ROWS_MAX", 2)
    ids = [admit().pk for _ in range(3)]
    before = photograph()
    response = confirm(operator, ids) if confirmed else post(operator, ids[:1], select_across="1")
    assert said(response) == ["Nothing was cancelled: select at most 2 jobs at a time."]
    assert photograph() == before


@pytest.mark.parametrize("key", ["nonsense", "%", ""])
def test_what_names_no_job_cancels_none(key: str, operator: Client, job: Job) -> None:
    before = photograph()
    for response in (post(operator, [key]), confirm(operator, [key])):
        assert response.status_code == 302
        assert said(response)
    assert photograph() == before


def test_a_whole_page_of_jobs_can_be_selected() -> None:
    assert ROWS_MAX >= 100
