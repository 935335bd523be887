"""Account, Hold, LedgerEntry, Price and UsageRecord: authorised, moved, consumed (SPEC F)."""

from django.db import models
from django.db.models import F, Q

from leaseq.models.fields import MoneyField, Record, only_words, word_field
from leaseq.vocabulary import Book, EndReason, EntryKind, HoldState


class Account(Record):
    """A tenant and its budget in one currency (SPEC 0, F1)."""

    name = models.CharField(max_length=200, unique=True)
    currency = models.CharField(max_length=3)
    is_open = models.BooleanField(default=True, help_text="Closed: admits nothing.")
    limit = MoneyField(help_text="What may be held and settled in all.")
    held = MoneyField(default=0)
    settled = MoneyField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(limit__gte=0, held__gte=0, settled__gte=0),
                name="account_amounts_are_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(currency__regex=r"^[A-Z]{3}$"),
                name="account_currency_is_three_capital_letters",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Hold(Record):
    """Money authorised for a Job against an Account; never a charge (SPEC 0, F2)."""

    id = models.UUIDField(primary_key=True)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="holds")
    job = models.ForeignKey("leaseq.Job", on_delete=models.PROTECT, related_name="holds")
    state = word_field(HoldState, default=HoldState.HELD)
    reason = word_field(EndReason, null=True)
    amount = MoneyField()
    held = MoneyField()
    settled = MoneyField(default=0)
    released = MoneyField(default=0)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(help_text="Set once.")
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            only_words("state", HoldState, "hold_state_is_a_known_word"),
            only_words("reason", EndReason, "hold_reason_is_a_known_word"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(state="held"), name="one_open_hold_per_job"
            ),
            models.CheckConstraint(
                condition=Q(amount__gte=0, held__gte=0, settled__gte=0, released__gte=0),
                name="hold_amounts_are_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(amount=F("held") + F("settled") + F("released")),
                name="authorised_is_held_and_settled_and_released",
            ),
            models.CheckConstraint(
                condition=(
                    Q(state="held", closed_at__isnull=True, reason__isnull=True)
                    | (~Q(state="held") & Q(held=0, closed_at__isnull=False, reason__isnull=False))
                ),
                name="a_closed_hold_holds_nothing_and_says_why",
            ),
        ]
        indexes = [
            models.Index(fields=["expires_at"], condition=Q(state="held"), name="hold_open"),
        ]

    def __str__(self) -> str:
        return f"hold {self.id}"


class LedgerEntry(Record):
    """One append-only movement from one book of an account to another (SPEC 0, F1).

    Each row takes an amount from one book and gives it to another, so that the books of an
    account balance by construction (PROMISES M1).
    """

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=200, unique=True, help_text="Idempotency key of the move.")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    hold = models.ForeignKey(Hold, on_delete=models.PROTECT, null=True, related_name="entries")
    job = models.ForeignKey(
        "leaseq.Job", on_delete=models.PROTECT, null=True, related_name="entries"
    )
    kind = word_field(EntryKind)
    source = word_field(Book)
    target = word_field(Book)
    amount = MoneyField()
    currency = models.CharField(max_length=3)
    actor = models.CharField(max_length=200)
    reason = models.CharField(max_length=300)
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            only_words("kind", EntryKind, "entry_kind_is_a_known_word"),
            only_words("source", Book, "entry_source_is_a_known_book"),
            only_words("target", Book, "entry_target_is_a_known_book"),
            models.CheckConstraint(
                condition=Q(amount__gt=0), name="an_entry_moves_more_than_nothing"
            ),
            models.CheckConstraint(
                condition=~Q(source=F("target")), name="an_entry_moves_between_two_books"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount} {self.currency}"


class Price(Record):
    """What one unit costs from one moment on; a change is a new row (SPEC F4)."""

    id = models.BigAutoField(primary_key=True)
    provider = models.CharField(max_length=100)
    model = models.CharField(max_length=200, blank=True, default="", help_text="Empty: any.")
    unit = models.CharField(max_length=50, help_text="prompt_token, completion_token, second …")
    currency = models.CharField(max_length=3)
    amount = MoneyField()
    valid_from = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "model", "unit", "currency", "valid_from"],
                name="one_price_per_unit_and_moment",
            ),
            models.CheckConstraint(condition=Q(amount__gte=0), name="a_price_is_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.provider}/{self.model or 'any'} {self.unit}: {self.amount} {self.currency}"


class UsageRecord(Record):
    """What an attempt consumed of one unit, settled or not (SPEC 0, F4)."""

    id = models.BigAutoField(primary_key=True)
    attempt = models.ForeignKey(
        "leaseq.Attempt", on_delete=models.PROTECT, related_name="usage_records"
    )
    unit = models.CharField(max_length=50)
    quantity = models.DecimalField(max_digits=20, decimal_places=6)
    provider = models.CharField(max_length=100)
    model = models.CharField(max_length=200, blank=True, default="")
    unit_price = MoneyField(null=True, help_text="Null: unpriced.")
    cost = MoneyField(null=True)
    currency = models.CharField(max_length=3)
    recorded_at = models.DateTimeField()
    settled_by = models.ForeignKey(
        LedgerEntry, on_delete=models.PROTECT, null=True, related_name="usage_records"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "unit"], name="one_usage_line_per_attempt_and_unit"
            ),
            models.CheckConstraint(
                condition=Q(quantity__gte=0), name="usage_quantity_is_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(unit_price__isnull=True, cost__isnull=True)
                | Q(unit_price__isnull=False, cost__isnull=False, cost__gte=0),
                name="usage_has_a_cost_only_when_priced",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} {self.unit}"
