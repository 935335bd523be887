"""ServingPolicy: named bounds for a class of jobs (SPEC 0, B7)."""

from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from leaseq.conf import settings
from leaseq.errors import Misconfigured
from leaseq.models.fields import MoneyField, Record, only_words, word_field
from leaseq.owner.renewer import Cadence, check_cadence
from leaseq.vocabulary import BoundHit, NoPermit

ZERO = timedelta(0)
# An instant so far ahead can still be computed with.
DURATION_MAX = timedelta(days=3650)
WAITS = ("retry_base", "retry_cap", "stop_grace")
DURATIONS = (
    "lease_ttl",
    "renew_every",
    "queue_age_max",
    "lease_life_max",
    "reserved_time_max",
    "run_time_max",
    "provider_wait_max",
    "hold_ttl",
    "uncertain_max",
)


class ServingPolicy(Record):
    """Bounds for a class of jobs: each is finite by default (SPEC B7)."""

    name = models.CharField(max_length=100, unique=True)
    is_open = models.BooleanField(default=True, help_text="Closed: admits and renews nothing.")

    lease_ttl = models.DurationField(default=timedelta(seconds=30))
    renew_every = models.DurationField(default=timedelta(seconds=10))
    queue_age_max = models.DurationField(default=timedelta(hours=24))
    lease_life_max = models.DurationField(default=timedelta(hours=6))
    reserved_time_max = models.DurationField(default=timedelta(hours=12))
    renewals_max = models.PositiveIntegerField(default=10_000)
    attempts_max = models.PositiveSmallIntegerField(default=3)
    run_time_max = models.DurationField(default=timedelta(hours=1))
    provider_wait_max = models.DurationField(default=timedelta(minutes=10))
    stall_limit = models.DurationField(null=True, blank=True)
    uncertain_max = models.DurationField(
        default=timedelta(hours=24), help_text="How long an unknown outcome is followed."
    )

    retry_base = models.DurationField(default=timedelta(seconds=1))
    retry_cap = models.DurationField(default=timedelta(minutes=5))
    on_bound = word_field(BoundHit, default=BoundHit.DEAD_LETTER)
    readmit_on_bound = models.BooleanField(
        default=False, help_text="Opens a next attempt after a bound of one attempt was hit."
    )
    keep_result = models.BooleanField(
        default=False, help_text="A result that comes after a cancel request still counts."
    )
    when_no_permit = word_field(NoPermit, default=NoPermit.WAIT)

    stop_grace = models.DurationField(
        default=timedelta(seconds=5), help_text="From the cooperative stop to the hard stop."
    )
    cooperative_only = models.BooleanField(
        default=False, help_text="Allows threads and solo pools, which know no hard stop."
    )

    cost_ceiling = MoneyField(
        null=True, blank=True, help_text="Held for a job that names no ceiling of its own."
    )
    hold_ttl = models.DurationField(default=timedelta(days=7))

    class Meta:
        verbose_name_plural = "serving policies"
        constraints = [
            only_words("on_bound", BoundHit, "policy_on_bound_is_a_known_word"),
            only_words("when_no_permit", NoPermit, "policy_when_no_permit_is_a_known_word"),
            models.CheckConstraint(
                condition=Q(lease_ttl__gte=timedelta(seconds=1)),
                name="policy_ttl_is_at_least_one_second",
                violation_error_message="lease_ttl must be at least one second.",
            ),
            models.CheckConstraint(
                condition=Q(lease_ttl__gt=F("renew_every") * 2),
                name="policy_renews_at_least_twice_within_a_ttl",
                violation_error_message=(
                    "Two renewals must fit in one lease_ttl, or one lost answer ends the lease: "
                    "lower renew_every below half of lease_ttl, or raise lease_ttl."
                ),
            ),
            models.CheckConstraint(
                condition=Q(**{f"{one}__gt": ZERO for one in DURATIONS}),
                name="policy_durations_are_above_zero",
                violation_error_message="Every limit of a policy must be above zero.",
            ),
            models.CheckConstraint(
                condition=Q(**{f"{one}__lte": DURATION_MAX for one in (*DURATIONS, *WAITS)})
                & (Q(stall_limit__isnull=True) | Q(stall_limit__lte=DURATION_MAX)),
                name="policy_durations_are_at_most_ten_years",
                violation_error_message="Every limit of a policy is at most 3650 days.",
            ),
            models.CheckConstraint(
                condition=Q(stall_limit__isnull=True) | Q(stall_limit__gt=ZERO),
                name="policy_stall_limit_is_above_zero",
                violation_error_message="A stall limit of zero stalls every run: leave it empty.",
            ),
            models.CheckConstraint(
                condition=Q(
                    retry_base__gt=ZERO, retry_cap__gte=F("retry_base"), stop_grace__gte=ZERO
                ),
                name="policy_waits_are_in_order",
                violation_error_message=(
                    "retry_base must be above zero and not above retry_cap, and stop_grace not "
                    "below zero."
                ),
            ),
            models.CheckConstraint(
                condition=Q(attempts_max__gte=1) & Q(renewals_max__gte=0),
                name="policy_allows_at_least_one_attempt",
                violation_error_message="attempts_max must be at least 1.",
            ),
            models.CheckConstraint(
                condition=Q(cost_ceiling__isnull=True) | Q(cost_ceiling__gte=0),
                name="policy_cost_ceiling_is_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse a rhythm of renewals that could not survive one lost answer (case C1)."""
        super().clean()
        if not (self.lease_ttl and self.renew_every):
            return
        try:
            self.check_cadence()
        except Misconfigured as error:
            raise ValidationError({"renew_every": error.message}) from error

    def check_cadence(self) -> None:
        """Raise Misconfigured unless two renewals and a slow answer fit into one lease_ttl."""
        cadence = Cadence.of(
            self.lease_ttl,
            self.renew_every,
            margin_max=timedelta(seconds=settings().safety_margin_seconds),
        )
        check_cadence(cadence.ttl, cadence.renew_every, cadence.latency, margin=cadence.margin)
