"""Job, Attempt and JobEvent: the durable work, its tries and its one timeline (SPEC A)."""

from datetime import timedelta

from django.db import models
from django.db.models import Q

from leaseq.models.fields import MoneyField, Record, only_words, word_field
from leaseq.models.money import Account
from leaseq.models.policies import ServingPolicy
from leaseq.vocabulary import (
    UNCLOSED_ATTEMPT_STATES,
    AttemptState,
    EndReason,
    JobState,
)


class Job(Record):
    """The durable logical unit of work a caller admitted (SPEC 0, A1, A6)."""

    id = models.UUIDField(primary_key=True)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="jobs")
    policy = models.ForeignKey(ServingPolicy, on_delete=models.PROTECT, related_name="jobs")
    task = models.CharField(max_length=200, help_text="The job type: the task's name.")
    queue = models.CharField(max_length=100)
    provider = models.CharField(max_length=100, default="local")
    payload = models.JSONField()
    payload_digest = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=200, null=True)
    priority = models.SmallIntegerField(default=0)

    state = word_field(JobState, default=JobState.ADMITTED)
    reason = word_field(EndReason, null=True)
    dead_letter = models.BooleanField(default=False)
    version = models.PositiveIntegerField(default=0, help_text="Counts the events of this job.")
    current_attempt_number = models.PositiveSmallIntegerField(default=1)

    submitted_at = models.DateTimeField()
    changed_at = models.DateTimeField(help_text="When the latest event was written.")
    not_before = models.DateTimeField(help_text="Not eligible for a reservation before this.")
    first_reserved_at = models.DateTimeField(null=True)
    waiting_since = models.DateTimeField(null=True, help_text="Null while claimed.")
    queue_deadline_at = models.DateTimeField(null=True, help_text="Null while claimed.")
    queue_time_used = models.DurationField(default=timedelta(0))
    queue_age_max = models.DurationField()
    reserved_time_used = models.DurationField(default=timedelta(0))
    renewals_used = models.PositiveIntegerField(default=0)
    attempts_counted = models.PositiveSmallIntegerField(
        default=0, help_text="Attempts that were granted capacity."
    )
    cancel_asked_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    settle_at = models.DateTimeField(
        null=True, help_text="When its money is looked at next; null before the end and after."
    )
    settled_at = models.DateTimeField(null=True)
    erased_at = models.DateTimeField(
        null=True, help_text="When payload and results were erased, after their retention."
    )
    cost_ceiling = MoneyField(help_text="The spending limit: what was held at admission.")

    class Meta:
        constraints = [
            only_words("state", JobState, "job_state_is_a_known_word"),
            only_words("reason", EndReason, "job_reason_is_a_known_word"),
            models.UniqueConstraint(
                fields=["account", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="one_job_per_account_and_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(cost_ceiling__gte=0), name="job_cost_ceiling_is_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(
                    state__in=["completed", "cancelled", "expired", "failed"],
                    ended_at__isnull=False,
                    reason__isnull=False,
                )
                | (
                    ~Q(state__in=["completed", "cancelled", "expired", "failed"])
                    & Q(ended_at__isnull=True, reason__isnull=True)
                ),
                name="a_job_has_an_end_and_a_reason_only_when_terminal",
            ),
            models.CheckConstraint(
                condition=Q(dead_letter=False) | Q(state__in=["failed", "expired"]),
                name="dead_letter_marks_only_failed_or_expired_jobs",
            ),
            models.CheckConstraint(
                condition=(
                    Q(
                        state__in=["admitted", "reserved", "queued"],
                        waiting_since__isnull=False,
                        queue_deadline_at__isnull=False,
                    )
                    | (
                        ~Q(state__in=["admitted", "reserved", "queued"])
                        & Q(waiting_since__isnull=True, queue_deadline_at__isnull=True)
                    )
                ),
                name="the_queue_clock_runs_only_while_a_job_waits",
            ),
            models.CheckConstraint(
                condition=Q(erased_at__isnull=True) | Q(ended_at__isnull=False),
                name="only_an_ended_job_is_erased_and_it_never_runs_again",
            ),
        ]
        indexes = [
            models.Index(
                fields=["queue", "-priority", "account", "policy", "provider", "submitted_at"],
                condition=Q(state="admitted"),
                name="job_waiting",
            ),
            models.Index(
                fields=["queue_deadline_at"],
                condition=Q(queue_deadline_at__isnull=False),
                name="job_queue_deadline",
            ),
            models.Index(
                fields=["settle_at"],
                condition=Q(settle_at__isnull=False),
                name="job_to_settle",
            ),
            models.Index(
                fields=["ended_at"],
                condition=Q(settled_at__isnull=False, erased_at__isnull=True),
                name="job_to_erase",
            ),
            models.Index(
                fields=["account"],
                condition=Q(
                    state__in=[
                        "reserved",
                        "queued",
                        "dispatching",
                        "provider_accepted",
                        "running",
                    ]
                ),
                name="job_active_by_account",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class Attempt(Record):
    """One try at executing a Job (SPEC 0); its times are set once, in order (SPEC E2)."""

    id = models.UUIDField(primary_key=True)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    state = word_field(AttemptState, default=AttemptState.OPEN)
    reason = word_field(EndReason, null=True)
    worker = models.ForeignKey(
        "leaseq.WorkerNode", on_delete=models.PROTECT, null=True, related_name="attempts"
    )
    possibly_sent = models.BooleanField(default=False, help_text="Never goes back.")

    opened_at = models.DateTimeField()
    reserved_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    accepted_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    progress_at = models.DateTimeField(null=True)
    unknown_since = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    progress = models.JSONField(default=dict)
    result = models.JSONField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            only_words("state", AttemptState, "attempt_state_is_a_known_word"),
            only_words("reason", EndReason, "attempt_reason_is_a_known_word"),
            models.UniqueConstraint(
                fields=["job", "number"], name="attempt_numbers_do_not_repeat_within_a_job"
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(state__in=sorted(UNCLOSED_ATTEMPT_STATES)),
                name="one_unclosed_attempt_per_job",
            ),
            models.CheckConstraint(
                condition=(
                    Q(state__in=["open", "outcome_unknown"], ended_at__isnull=True)
                    | (
                        ~Q(state__in=["open", "outcome_unknown"])
                        & Q(ended_at__isnull=False, reason__isnull=False)
                    )
                ),
                name="an_attempt_has_an_end_and_a_reason_only_when_closed",
            ),
            models.CheckConstraint(
                condition=(
                    Q(accepted_at__isnull=True)
                    | Q(claimed_at__isnull=False, accepted_at__gte=models.F("claimed_at"))
                )
                & (
                    Q(started_at__isnull=True)
                    | Q(accepted_at__isnull=False, started_at__gte=models.F("accepted_at"))
                ),
                name="claimed_then_accepted_then_started",
            ),
            models.CheckConstraint(
                condition=~Q(state="outcome_unknown") | Q(possibly_sent=True),
                name="only_a_possibly_sent_attempt_is_of_unknown_outcome",
            ),
        ]
        indexes = [
            models.Index(
                fields=["unknown_since"],
                condition=Q(state="outcome_unknown"),
                name="attempt_unknown",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class JobEvent(Record):
    """One change, written in the transaction that made it (SPEC A5, PROMISES P19)."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events")
    version = models.PositiveIntegerField(help_text="Gapless within a job.")
    kind = models.CharField(max_length=50)
    from_state = word_field(JobState, null=True)
    to_state = word_field(JobState)
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, null=True, related_name="events")
    lease = models.ForeignKey(
        "leaseq.Lease", on_delete=models.PROTECT, null=True, related_name="events"
    )
    actor = models.CharField(max_length=200)
    reason = models.CharField(max_length=300, blank=True, default="")
    at = models.DateTimeField()
    data = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "version"], name="one_event_per_version_of_a_job"
            ),
            models.CheckConstraint(condition=~Q(actor=""), name="every_event_names_its_actor"),
            only_words("to_state", JobState, "event_to_state_is_a_known_word"),
        ]

    def __str__(self) -> str:
        return f"{self.version} {self.kind}"
