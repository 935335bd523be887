"""Jobs with their story, attempts, events and messages still to be sent (SPEC H1)."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from leaseq.models import (
    Account,
    Attempt,
    Job,
    JobEvent,
    Lease,
    OutboxMessage,
    ServingPolicy,
    UsageRecord,
)
from leaseq.queries import moment, wording
from leaseq_admin import timeline
from leaseq_admin.actions import cancel_selected
from leaseq_admin.admin.base import Page, TypedFilter


class QueueFilter(TypedFilter):
    """Jobs of one queue."""

    title = parameter_name = lookup = "queue"


class TaskFilter(TypedFilter):
    """Jobs of one type."""

    title = parameter_name = lookup = "task"


class AccountFilter(TypedFilter):
    """Jobs of one account."""

    title = parameter_name = "account"
    lookup = "account__name"
    suggested = Account


class PolicyFilter(TypedFilter):
    """Jobs of one policy."""

    title = parameter_name = "policy"
    lookup = "policy__name"
    suggested = ServingPolicy


@admin.register(Job)
class JobPage(Page):
    """Jobs: what was asked for, where each stands, and all that happened to it."""

    currency_path = "account.currency"
    list_display = (
        *("id", "task", "standing", "submitted_at", "account", "queue", "policy"),
        *("priority", "attempt"),
    )
    list_select_related = ("account", "policy")
    list_filter = ("state", "dead_letter", QueueFilter, AccountFilter, PolicyFilter, TaskFilter)
    unlisted = ("payload",)
    searched_ids = ("id",)
    searched_texts = ("idempotency_key",)
    search_fields = ("id", "idempotency_key")
    search_help_text = "A job's whole id, its end or beginning, or an exact idempotency key."
    actions = (cancel_selected,)
    fieldsets = (
        (
            "Job",
            {
                "fields": (
                    ("id", "task", "idempotency_key"),
                    ("account", "cost_ceiling", "policy"),
                    ("queue", "provider", "priority"),
                )
            },
        ),
        (
            "Where it stands",
            {
                "fields": (
                    ("state", "reason", "dead_letter"),
                    ("submitted_at", "first_reserved_at", "not_before"),
                    ("current_attempt_number", "cancel_asked_at", "ended_at"),
                    ("settle_at", "settled_at", "erased_at"),
                    ("version", "changed_at"),
                )
            },
        ),
        (
            "What it used of its bounds",
            {
                "fields": (
                    ("waiting_since", "queue_deadline_at", "attempts_counted"),
                    ("queue_time_used", "queue_age_max", "renewals_used"),
                    "reserved_time_used",
                )
            },
        ),
        ("Payload", {"fields": ("payload", "payload_digest"), "classes": ("collapse",)}),
    )

    @admin.display(description="state")
    def standing(self, job: Job) -> str:
        """Say the state, and what an operator must know beside it."""
        said = wording.words(job.state)
        if job.dead_letter:
            return f"{said}, dead letter"
        if job.cancel_asked_at is not None and job.ended_at is None:
            return f"{said}, cancel asked"
        return said

    @admin.display(description="attempt")
    def attempt(self, job: Job) -> int:
        """Say which attempt is the current one."""
        return job.current_attempt_number

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Say who may act on jobs: whoever may change them."""
        return request.user.has_perm("leaseq.change_job")

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Act, or say that what was posted names no row."""
        try:
            response: HttpResponse | None = super().response_action(
                request, queryset, *args, **kwargs
            )
        except ValidationError:
            self.message_user(request, "That names no job; nothing changed.", messages.ERROR)
            return None
        return response

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the job with its story below its fields."""
        context["story"] = timeline.of(context["original"], now=moment.as_of())
        return super().render_change_form(request, context, *args, **kwargs)


@admin.register(Attempt)
class AttemptPage(Page):
    """Attempts: one try each at executing a job."""

    list_display = (
        *("id", "job", "number", "state", "reason", "worker", "possibly_sent"),
        *("opened_at", "started_at", "ended_at"),
    )
    list_select_related = ("worker",)
    list_filter = ("state", "possibly_sent")
    unlisted = ("result", "progress", "error")
    searched_ids = ("id", "job")
    search_fields = ("id", "job")
    search_help_text = "The whole id of an attempt or job, or the end of an attempt's."
    lists = (
        ("leases", Lease, "attempt__id"),
        ("usage", UsageRecord, "attempt__id"),
        ("events", JobEvent, "attempt__id"),
    )
    fieldsets = (
        (
            "Attempt",
            {
                "fields": (
                    *("id", "job", "number", "state", "reason", "worker", "possibly_sent"),
                    "links",
                )
            },
        ),
        (
            "Times",
            {
                "fields": (
                    *("opened_at", "reserved_at", "claimed_at", "accepted_at", "started_at"),
                    *("progress_at", "unknown_since", "ended_at"),
                )
            },
        ),
        ("What came of it", {"fields": ("progress", "result", "error")}),
    )


@admin.register(JobEvent)
class JobEventPage(Page):
    """Events: every change of every job, by whom and why."""

    list_display = (
        *("id", "at", "job", "version", "kind", "from_state", "to_state", "attempt"),
        *("actor", "reason"),
    )
    list_filter = ("to_state",)
    unlisted = ("data",)
    searched_ids = ("id", "job")
    search_fields = ("id", "job")
    search_help_text = "The number of an event, or the whole id of a job."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "job", "version", "kind", "from_state", "to_state", "attempt"),
                    *("lease", "actor", "reason", "at", "data"),
                )
            },
        ),
    )


@admin.register(OutboxMessage)
class OutboxMessagePage(Page):
    """Messages of queued attempts: sent, or still to be sent."""

    list_display = ("attempt", "task", "queue", "sends", "send_at", "last_error")
    ordering = ("send_at",)
    list_filter = (QueueFilter,)
    searched_ids = ("attempt",)
    search_fields = ("attempt",)
    search_help_text = "The whole id of an attempt."
    fieldsets = (
        (None, {"fields": ("attempt", "task", "queue", "sends", "send_at", "last_error")}),
    )
