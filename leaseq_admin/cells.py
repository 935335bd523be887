"""One value as a person reads it on a page; every text of a row is escaped (SPEC H1)."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone

from leaseq.models import Attempt, Hold, Job, Lease, ProviderRequest, WorkerNode
from leaseq.queries.wording import NOTHING, span, tail, words
from leaseq.rules.money import plain
from leaseq.vocabulary import EndReason

DOCUMENT_LENGTH_MAX = 20_000
END_REASONS = frozenset(EndReason)
# Their names hold a whole id, which no list has room for.
LONG_NAMED = frozenset({Attempt, Hold, Job, Lease, ProviderRequest})


def exact(at: datetime) -> str:
    """Write an instant as the authority keeps it, to the microsecond and in UTC."""
    return at.astimezone(UTC).isoformat(sep=" ")


def instant(at: datetime | None) -> str:
    """Show an instant to the second in the site's time zone; the exact one on hover."""
    if at is None:
        return NOTHING
    local = at.astimezone(get_current_timezone())
    return format_html(
        '<time class="leaseq-cell" datetime="{}" title="{}">{}</time>',
        at.isoformat(),
        exact(at),
        f"{local:%Y-%m-%d %H:%M:%S}",
    )


def time_left(until: datetime, *, now: datetime) -> SafeString:
    """Show the time that is left, or since when it is over; the exact end on hover."""
    said = span(until - now) if until > now else f"ran out {span(now - until)} ago"
    return format_html('<span class="leaseq-cell" title="{}">{}</span>', exact(until), said)


def money(amount: Decimal | None, currency: str) -> str:
    """Show money exactly, with its currency and no zeros that say nothing."""
    if amount is None:
        return NOTHING
    return format_html('<span class="leaseq-number">{} {}</span>', plain(amount), currency)


def identity(key: UUID) -> SafeString:
    """Show the end of an id; the whole of it on hover."""
    return format_html('<span class="leaseq-id" title="{}">{}</span>', key, tail(key))


def page_of(model: type[Model], key: int | str | UUID) -> str:
    """Return the address of the page of one row."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(name, args=[quote(key)])


def list_of(model: type[Model], **filters: object) -> str:
    """Return the address of a list, filtered by foreign keys of its rows."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, query={f"{field}__exact": str(value) for field, value in filters.items()})


def link(url: str, text: str, *, title: str = "") -> SafeString:
    """Show a text that leads to a page."""
    return format_html('<a class="leaseq-cell" href="{}" title="{}">{}</a>', url, title, text)


def row_link(model: type[Model], key: Any, text: str) -> SafeString:
    """Show the name of a row, leading to its page."""
    return link(page_of(model, key), text, title=str(key))


def prose(text: str) -> str:
    """Show a text of any length in a table, broken where it must be."""
    return format_html('<span class="leaseq-prose">{}</span>', text) if text else NOTHING


def reason(text: str) -> str:
    """Show why: a word of the vocabulary in words, what a person wrote as it was written."""
    return prose(words(text) if text in END_REASONS else text)


def actor(text: str) -> str:
    """Name who did it; a worker, which is named by its id, with a way to its page."""
    kind, _, name = text.partition(":")
    if kind != "worker":
        return prose(text)
    try:
        key = UUID(name)
    except ValueError:
        return prose(text)
    return row_link(WorkerNode, key, f"worker {tail(key)}")


def document(value: object) -> str:
    """Show JSON, indented and at most as long as a page can carry."""
    if value is None:
        return NOTHING
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > DOCUMENT_LENGTH_MAX:
        hidden = len(text) - DOCUMENT_LENGTH_MAX
        text = f"{text[:DOCUMENT_LENGTH_MAX]}\n… and {hidden} characters more"
    return format_html('<pre class="leaseq-document">{}</pre>', text)
