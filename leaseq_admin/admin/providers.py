"""Requests to providers: the intent, and what the provider said (SPEC H1, E2, E3)."""

from django.contrib import admin

from leaseq.models import ProviderRequest
from leaseq_admin.admin.base import Page, TypedFilter


class ProviderFilter(TypedFilter):
    """Requests to one provider."""

    title = parameter_name = lookup = "provider"


@admin.register(ProviderRequest)
class ProviderRequestPage(Page):
    """Provider requests: one submission of one attempt each."""

    list_display = (
        *("id", "attempt", "provider", "model", "state", "provider_request_id"),
        *("prepared_at", "accepted_at", "started_at", "ended_at"),
    )
    list_filter = ("state", ProviderFilter)
    searched_ids = ("id", "attempt")
    searched_texts = ("idempotency_key", "provider_request_id")
    search_fields = ("id", "attempt", "idempotency_key", "provider_request_id")
    search_help_text = (
        "The whole id of a request or attempt, an exact idempotency key, or the provider's own id."
    )
    fieldsets = (
        (
            "Request",
            {
                "fields": (
                    *("id", "attempt", "provider", "endpoint", "model", "state", "detail"),
                    *("provider_request_id", "idempotency_key", "body_digest"),
                    *("ends_with_connection", "fence_epoch", "fence"),
                )
            },
        ),
        (
            "Times",
            {
                "fields": (
                    *("prepared_at", "accepted_at", "started_at", "ended_at"),
                    "provider_deadline_at",
                )
            },
        ),
    )
