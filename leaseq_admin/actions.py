"""What an operator does to rows: permission, a reason, one call per row (SPEC H2, case S1)."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from leaseq.errors import Refused
from leaseq.models import Job
from leaseq.queries import wording
from leaseq.services import cancellation
from leaseq.services.events import REASON_LENGTH_MAX
from leaseq.vocabulary import JobState
from leaseq_admin import cells

ROWS_MAX = 100
ACTOR_LENGTH_MAX = 200


class ReasonForm(forms.Form):
    """Asks why; the answer is kept with the event of every row."""

    reason = forms.CharField(
        max_length=REASON_LENGTH_MAX,
        label="Why? It is kept with each job's events.",
        error_messages={"required": "Say why: it is kept with each job's events."},
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


@admin.action(description="Cancel selected jobs", permissions=["operate"])
def cancel_selected(
    page: "admin.ModelAdmin[Job]", request: HttpRequest, queryset: QuerySet[Job]
) -> HttpResponse | None:
    """Ask why, then ask for the cancellation of each job, and say of each what came of it.

    The jobs confirmed are named by their ids, so that a job which meanwhile left the filtered
    list gets its answer too.
    """
    confirmed = "confirmed" in request.POST
    form = ReasonForm(request.POST) if confirmed else ReasonForm()
    chosen = _named_in(request) if confirmed else _ids_of(queryset)
    if len(chosen) > ROWS_MAX:
        said = f"Nothing was cancelled: select at most {ROWS_MAX} jobs at a time."
        page.message_user(request, said, messages.ERROR)
        return None
    if not chosen:
        page.message_user(request, "None of these jobs is there; nothing changed.", messages.ERROR)
        return None
    if not confirmed or not form.is_valid():
        return _ask_why(page, request, chosen=chosen, form=form)
    actor = f"user:{request.user.get_username()}"[:ACTOR_LENGTH_MAX]
    for job_id in chosen:
        level, said = _cancel(job_id, actor=actor, reason=form.cleaned_data["reason"])
        page.message_user(request, said, level)
    return None


def _cancel(job_id: UUID, *, actor: str, reason: str) -> tuple[int, str]:
    try:
        state = cancellation.ask(job_id, actor=actor, reason=reason)
    except Refused as error:
        return messages.ERROR, f"Job {job_id}: {error.message}."
    if state is JobState.CANCELLED:
        return messages.SUCCESS, f"Job {job_id}: cancelled."
    said = f"Job {job_id}: asked to stop; it is {wording.words(state)} until its owner follows."
    return messages.WARNING, said


def _ids_of(queryset: "QuerySet[Job]") -> list[UUID]:
    return list(queryset.order_by("-pk").values_list("pk", flat=True)[: ROWS_MAX + 1])


def _named_in(request: HttpRequest) -> list[UUID]:
    named: dict[UUID, None] = {}
    for text in request.POST.getlist(ACTION_CHECKBOX_NAME):
        try:
            named[UUID(text)] = None
        except ValueError:
            continue  # not what this page sent: it names no job
    return list(named)


def _ask_why(
    page: "admin.ModelAdmin[Job]", request: HttpRequest, *, chosen: list[UUID], form: ReasonForm
) -> HttpResponse:
    jobs = Job.objects.filter(pk__in=chosen).select_related("account").defer("payload")
    context: dict[str, Any] = {
        **page.admin_site.each_context(request),
        "title": "Cancel jobs",
        "opts": Job._meta,
        "media": page.media,
        "form": form,
        "jobs": [
            (
                job.pk,
                cells.row_link(Job, job.pk, str(job.pk)),
                job.task,
                wording.words(job.state),
                job.account.name,
            )
            for job in jobs.order_by("-pk")
        ],
        "action_checkbox_name": ACTION_CHECKBOX_NAME,
    }
    request.current_app = page.admin_site.name
    return TemplateResponse(request, "admin/leaseq/job/cancel_selected.html", context)
