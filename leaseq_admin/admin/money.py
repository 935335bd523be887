"""Accounts, holds, the ledger, prices and usage (SPEC H1, F)."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.core.validators import RegexValidator
from django.http import HttpRequest

from leaseq.models import Account, Hold, Job, LedgerEntry, Price, UsageRecord
from leaseq.rules.money import plain
from leaseq_admin import cells
from leaseq_admin.admin.base import ConfigurationPage, Page

CURRENCY = RegexValidator(
    r"^[A-Z]{3}\Z", "A currency is three capital letters, such as EUR or USD."
)


class AccountForm(forms.ModelForm):  # type: ignore[type-arg]
    """Refuses a limit below what is held and settled already (SPEC F3)."""

    def clean_limit(self) -> Decimal:
        """Return the limit, with the account locked until the form is saved.

        The lock keeps an admission from holding more between this look and the write.
        """
        limit: Decimal = self.cleaned_data["limit"]
        if self.instance.pk is None:
            return limit
        now = Account.objects.locked().get(pk=self.instance.pk)
        if limit < now.held + now.settled:
            message = (
                f"{plain(now.held)} held and {plain(now.settled)} settled {now.currency} stand "
                f"against this account: the limit cannot be below {plain(now.held + now.settled)}. "
                "To stop new work, close the account instead."
            )
            raise forms.ValidationError(message)
        return limit


@admin.register(Account)
class AccountPage(ConfigurationPage):
    """Accounts: a tenant's budget, what is held and settled of it, and what is left."""

    form = AccountForm
    list_display = ("name", "limit", "held", "settled", "available", "is_open")
    ordering = ("name",)
    list_filter = ("is_open",)
    searched_ids = ("id",)
    searched_texts = ("name",)
    search_fields = ("id", "name")
    search_help_text = "The exact name of an account."
    lists = (
        ("jobs", Job, "account__id"),
        ("holds", Hold, "account__id"),
        ("ledger entries", LedgerEntry, "account__id"),
    )
    fixed = ("name", "currency")
    edited = ("limit", "is_open")
    fieldsets = (
        (None, {"fields": ("name", "currency", "limit", "is_open")}),
        ("Balance", {"fields": ("held", "settled", "available", "links", "id")}),
    )

    @admin.display(description="available")
    def available(self, account: Account) -> str:
        """Show what may still be held."""
        left = account.limit - account.held - account.settled
        return cells.money(left, account.currency)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "currency":
            kwargs["validators"] = [CURRENCY]
        return super().formfield_for_dbfield(db_field, request, **kwargs)


@admin.register(Hold)
class HoldPage(Page):
    """Holds: money authorised for a job, and what became of it."""

    currency_path = "account.currency"
    list_display = (
        *("id", "job", "account", "state", "reason", "amount", "held", "settled", "released"),
        *("created_at", "expires_at"),
    )
    list_select_related = ("account",)
    list_filter = ("state",)
    searched_ids = ("id", "job")
    search_fields = ("id", "job")
    search_help_text = "The whole id of a hold or job, or the end of a hold's."
    lists = (("ledger entries", LedgerEntry, "hold__id"),)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "account", "job", "state", "reason", "amount", "held", "settled"),
                    *("released", "created_at", "expires_at", "closed_at", "links"),
                )
            },
        ),
    )


@admin.register(LedgerEntry)
class LedgerEntryPage(Page):
    """Ledger entries: every movement of money, never changed."""

    list_display = ("id", "at", "kind", "source", "target", "amount", "account", "job", "actor")
    list_select_related = ("account",)
    list_filter = ("kind",)
    searched_ids = ("id", "job", "hold")
    searched_texts = ("key",)
    search_fields = ("id", "job", "hold", "key")
    search_help_text = "The number or exact key of an entry, or the whole id of a job or hold."
    lists = (("usage", UsageRecord, "settled_by__id"),)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "key", "account", "hold", "job", "kind", "source", "target"),
                    *("amount", "currency", "actor", "reason", "at", "links"),
                )
            },
        ),
    )


@admin.register(Price)
class PricePage(ConfigurationPage):
    """Prices: what one unit costs from one moment on. A change is a new price."""

    list_display = ("id", "provider", "model", "unit", "amount", "currency", "valid_from")
    list_filter = ("currency",)
    searched_ids = ("id",)
    searched_texts = ("provider", "model", "unit")
    search_fields = ("id", "provider", "model", "unit")
    search_help_text = "The number of a price, or an exact provider, model or unit."
    fixed = ("provider", "model", "unit", "currency", "amount", "valid_from")
    fieldsets = (
        (
            None,
            {"fields": ("provider", "model", "unit", "currency", "amount", "valid_from", "id")},
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "currency":
            kwargs["validators"] = [CURRENCY]
        return super().formfield_for_dbfield(db_field, request, **kwargs)


@admin.register(UsageRecord)
class UsageRecordPage(Page):
    """Usage: what each attempt consumed, and what it cost."""

    list_display = (
        *("id", "attempt", "provider", "model", "quantity", "unit", "unit_price", "cost"),
        *("settled_by", "recorded_at"),
    )
    list_select_related = ("settled_by",)
    list_filter = (("settled_by", admin.EmptyFieldListFilter),)
    searched_ids = ("id", "attempt")
    search_fields = ("id", "attempt")
    search_help_text = "The number of a usage record, or the whole id of an attempt."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "attempt", "provider", "model", "unit", "quantity", "unit_price"),
                    *("cost", "currency", "settled_by", "recorded_at"),
                )
            },
        ),
    )
