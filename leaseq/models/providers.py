"""ProviderRequest: one submission of one Attempt to one provider (SPEC 0, E2, E3)."""

from django.db import models
from django.db.models import Q

from leaseq.models.fields import Record, only_words, word_field
from leaseq.models.jobs import Attempt
from leaseq.vocabulary import OPEN_REQUEST_STATES, RequestState


class ProviderRequest(Record):
    """The intent recorded before the first byte, then what the provider said (SPEC E3)."""

    id = models.UUIDField(primary_key=True)
    attempt = models.OneToOneField(
        Attempt, on_delete=models.PROTECT, related_name="provider_request"
    )
    provider = models.CharField(max_length=100)
    endpoint = models.CharField(max_length=500, help_text="Stored, not re-read (case M2).")
    model = models.CharField(max_length=200, blank=True, default="")
    idempotency_key = models.CharField(max_length=100, unique=True)
    body_digest = models.CharField(max_length=64)
    ends_with_connection = models.BooleanField(help_text="The capability as declared then.")
    state = word_field(RequestState, default=RequestState.PREPARED)
    provider_request_id = models.CharField(max_length=200, null=True)
    fence_epoch = models.PositiveIntegerField()
    fence = models.PositiveBigIntegerField()
    prepared_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    provider_deadline_at = models.DateTimeField(null=True)
    detail = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        constraints = [
            only_words("state", RequestState, "request_state_is_a_known_word"),
            models.CheckConstraint(
                condition=Q(state__in=sorted(OPEN_REQUEST_STATES), ended_at__isnull=True)
                | (~Q(state__in=sorted(OPEN_REQUEST_STATES)) & Q(ended_at__isnull=False)),
                name="a_request_has_an_end_only_when_it_is_over",
            ),
        ]
        indexes = [
            models.Index(
                fields=["prepared_at"],
                condition=Q(ended_at__isnull=True),
                name="request_open",
            ),
        ]

    def __str__(self) -> str:
        return f"request {self.id} to {self.provider}"
