"""Findings: what a person should look at, with evidence (SPEC H1, G3)."""

from django.contrib import admin

from leaseq.models import Finding
from leaseq_admin.admin.base import Page, TypedFilter


class KindFilter(TypedFilter):
    """Findings of one kind."""

    title = parameter_name = lookup = "kind"


@admin.register(Finding)
class FindingPage(Page):
    """Findings, open and closed; each closes by itself when its cause is gone."""

    list_display = ("id", "kind", "severity", "job", "suggested_action", "opened_at", "closed_at")
    list_filter = (("closed_at", admin.EmptyFieldListFilter), KindFilter)
    unlisted = ("evidence",)
    searched_ids = ("id", "job")
    search_fields = ("id", "job")
    search_help_text = "The number of a finding, or the whole id of a job."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "kind", "severity", "job", "evidence", "suggested_action"),
                    *("opened_at", "closed_at"),
                )
            },
        ),
    )
