"""WorkerNode, Slot, PermitPool and Lease: rights to one unit of one resource (SPEC B)."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from leaseq.models.fields import Record, only_words, word_field
from leaseq.models.jobs import Attempt, Job
from leaseq.vocabulary import EndReason, LeaseStatus, PoolKind, ResourceType, WorkerState


class WorkerNode(Record):
    """One incarnation of a worker process, never a host or pid alone (SPEC M8)."""

    id = models.UUIDField(primary_key=True)
    name = models.CharField(max_length=200, help_text="The Celery node name.")
    node = models.CharField(max_length=200, help_text="The machine.")
    boot_id = models.CharField(max_length=100)
    pid = models.PositiveIntegerField()
    start_ticks = models.PositiveBigIntegerField(help_text="Tells a reused pid from this one.")
    queues = ArrayField(models.CharField(max_length=100))
    pool = models.CharField(max_length=50)
    state = word_field(WorkerState, default=WorkerState.LIVE)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            only_words("state", WorkerState, "worker_state_is_a_known_word"),
            models.UniqueConstraint(
                fields=["node", "boot_id", "pid", "start_ticks", "started_at"],
                name="a_worker_incarnation_registers_once",
            ),
        ]
        indexes = [
            models.Index(
                fields=["seen_at"],
                condition=Q(state__in=["live", "draining"]),
                name="worker_present",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Slot(Record):
    """One schedulable unit of capacity; it outlives the processes that offer it (SPEC 0)."""

    id = models.BigAutoField(primary_key=True)
    node = models.CharField(max_length=200)
    unit = models.CharField(max_length=200, help_text="A GPU's UUID, or a declared name.")
    share = models.PositiveSmallIntegerField(default=0)
    worker = models.ForeignKey(
        WorkerNode, on_delete=models.PROTECT, null=True, related_name="slots"
    )
    queues = ArrayField(models.CharField(max_length=100))
    first_seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "unit", "share"], name="one_slot_row_per_physical_unit"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node}/{self.unit}#{self.share}"


class PermitPool(Record):
    """A limit on how many jobs may be reserved or running for one key (SPEC 0, B3)."""

    id = models.BigAutoField(primary_key=True)
    kind = word_field(PoolKind)
    key = models.CharField(max_length=200, help_text="The account's, queue's, policy's … name.")
    limit = models.PositiveIntegerField()

    class Meta:
        constraints = [
            only_words("kind", PoolKind, "pool_kind_is_a_known_word"),
            models.UniqueConstraint(fields=["kind", "key"], name="one_pool_per_kind_and_key"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"


class Lease(Record):
    """A finite, renewable right to one unit of one resource (SPEC B1).

    The owner is a worker by incarnation, or the control plane where `worker` is null. A row ends
    once; a transfer ends it and names it as the predecessor of the next.
    """

    id = models.UUIDField(primary_key=True)
    resource_type = word_field(ResourceType)
    slot = models.ForeignKey(Slot, on_delete=models.PROTECT, null=True, related_name="leases")
    pool = models.ForeignKey(PermitPool, on_delete=models.PROTECT, null=True, related_name="leases")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="leases")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="leases")
    worker = models.ForeignKey(
        WorkerNode, on_delete=models.PROTECT, null=True, related_name="leases"
    )
    predecessor = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, related_name="successor"
    )
    status = word_field(LeaseStatus, default=LeaseStatus.ACTIVE)
    end_reason = word_field(EndReason, null=True)

    fence_epoch = models.PositiveIntegerField()
    fence = models.PositiveBigIntegerField()
    version = models.PositiveIntegerField(default=1)
    expires_at = models.DateTimeField()
    renewed_at = models.DateTimeField(null=True)
    renewal_count = models.PositiveIntegerField(default=0)
    renewals_before = models.PositiveIntegerField(
        default=0, help_text="Renewals of the predecessors."
    )
    renewal_key = models.CharField(max_length=64, null=True)
    created_at = models.DateTimeField()
    first_reserved_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            only_words("status", LeaseStatus, "lease_status_is_a_known_word"),
            only_words("end_reason", EndReason, "lease_end_reason_is_a_known_word"),
            models.CheckConstraint(
                condition=(
                    Q(resource_type="slot", slot__isnull=False, pool__isnull=True)
                    | Q(resource_type="permit", slot__isnull=True, pool__isnull=False)
                ),
                name="a_lease_is_of_one_slot_or_of_one_permit_pool",
            ),
            models.UniqueConstraint(
                fields=["slot"], condition=Q(status="active"), name="one_live_lease_per_slot"
            ),
            models.UniqueConstraint(
                fields=["attempt", "pool"],
                condition=Q(status="active", resource_type="permit"),
                name="one_live_permit_per_attempt_and_pool",
            ),
            models.UniqueConstraint(
                fields=["attempt"],
                condition=Q(status="active", resource_type="slot"),
                name="one_live_slot_per_attempt",
            ),
            models.UniqueConstraint(
                fields=["fence_epoch", "fence"], name="a_fencing_token_never_repeats"
            ),
            models.CheckConstraint(
                condition=(
                    Q(status="active", ended_at__isnull=True, end_reason__isnull=True)
                    | (~Q(status="active") & Q(ended_at__isnull=False, end_reason__isnull=False))
                ),
                name="a_lease_has_an_end_and_a_reason_only_when_ended",
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=models.F("created_at")),
                name="a_lease_ends_no_earlier_than_it_was_granted",
            ),
            models.CheckConstraint(
                condition=Q(expires_at__gt=models.F("created_at")),
                name="a_lease_expires_after_it_was_granted",
            ),
        ]
        indexes = [
            models.Index(fields=["id"], condition=Q(status="active"), name="lease_live"),
            models.Index(fields=["pool"], condition=Q(status="active"), name="lease_live_in_pool"),
            models.Index(fields=["worker"], condition=Q(status="active"), name="lease_live_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.resource_type} lease {self.id}"
