"""Leases, slots, permit pools, workers, policies and the control plane (SPEC H1)."""

from datetime import datetime
from typing import Any, assert_never

from django.contrib import admin, messages
from django.db.models import Count, DateTimeField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from leaseq.models import (
    Account,
    Attempt,
    ControlPass,
    Epoch,
    Job,
    Lease,
    PermitPool,
    ServingPolicy,
    Slot,
    WorkerNode,
)
from leaseq.queries import moment, wording
from leaseq.vocabulary import LeaseStatus, PoolKind
from leaseq_admin import cells
from leaseq_admin.admin.base import ConfigurationPage, Page
from leaseq_admin.timeline import left_of


def _is_known(kind: PoolKind, key: str) -> bool:
    match kind:
        case PoolKind.ACCOUNT:
            return Account.objects.filter(name=key).exists()
        case PoolKind.POLICY:
            return ServingPolicy.objects.filter(name=key).exists()
        case PoolKind.QUEUE | PoolKind.PROVIDER:
            return True  # no table lists them: a queue is whatever jobs and workers name
        case _:
            assert_never(kind)


def _as_of(now: datetime) -> Value:
    return Value(now, output_field=DateTimeField())


@admin.register(Lease)
class LeasePage(Page):
    """Leases: who may use which slot or permit, and for how much longer."""

    list_display = (
        *("id", "unit", "job", "owner", "status", "time_left", "created_at"),
        *("end_reason", "renewals"),
    )
    list_select_related = ("slot", "pool", "worker")
    list_filter = ("status", "resource_type")
    searched_ids = ("id", "job", "attempt")
    search_fields = ("id", "job", "attempt")
    search_help_text = "The whole id of a lease, job or attempt, or the end of a lease's."
    fieldsets = (
        (
            "Lease",
            {
                "fields": (
                    *("id", "resource_type", "slot", "pool", "job", "attempt", "owner"),
                    *("status", "end_reason", "predecessor", "following"),
                )
            },
        ),
        (
            "Life",
            {
                "fields": (
                    *("time_left", "expires_at", "created_at", "first_reserved_at", "renewed_at"),
                    *("ended_at", "renewal_count", "renewals_before"),
                )
            },
        ),
        (
            "What its owner proves",
            {"fields": ("fencing_token", "version", "renewal_key"), "classes": ("collapse",)},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        dated: QuerySet[Any] = rows.annotate(as_of=_as_of(moment.as_of()))
        return dated

    @admin.display(description="of")
    def unit(self, lease: Lease) -> str:
        """Name the slot or the pool."""
        of = lease.slot or lease.pool
        return wording.NOTHING if of is None else cells.row_link(type(of), of.pk, str(of))

    @admin.display(description="owner")
    def owner(self, lease: Lease) -> str:
        """Name the worker, or the control plane."""
        if lease.worker is None:
            return "control plane"
        return cells.row_link(WorkerNode, lease.worker.pk, str(lease.worker))

    @admin.display(description="time left")
    def time_left(self, lease: Any) -> str:
        """Say how much longer it lives by the authority's clock."""
        return left_of(lease, now=lease.as_of)

    @admin.display(description="renewals")
    def renewals(self, lease: Lease) -> int:
        """Count the renewals of this row and of those before it."""
        return lease.renewals_before + lease.renewal_count

    @admin.display(description="fencing token")
    def fencing_token(self, lease: Lease) -> str:
        """Show epoch and counter."""
        return f"{lease.fence_epoch}.{lease.fence}"

    @admin.display(description="successor")
    def following(self, lease: Lease) -> str:
        """Lead to the lease that took this one over."""
        after = Lease.objects.filter(predecessor=lease).values_list("pk", flat=True).first()
        return wording.NOTHING if after is None else cells.row_link(Lease, after, str(after))


@admin.register(Slot)
class SlotPage(Page):
    """Slots: each unit of capacity, and the job that has it now."""

    list_display = ("id", "node", "unit", "share", "worker", "offered_to", "held_by", "time_left")
    list_select_related = ("worker",)
    list_filter = (("worker", admin.EmptyFieldListFilter),)
    searched_ids = ("id",)
    searched_texts = ("node", "unit")
    search_fields = ("id", "node", "unit")
    search_help_text = "The number of a slot, or the exact name of a node or unit."
    lists = (("leases", Lease, "slot__id"),)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "node", "unit", "share", "worker", "queues", "first_seen_at"),
                    *("held_by", "time_left", "links"),
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        live = Lease.objects.filter(slot=OuterRef("pk"), status=LeaseStatus.ACTIVE)
        taken: QuerySet[Any] = (
            super()
            .get_queryset(request)
            .annotate(
                as_of=_as_of(moment.as_of()),
                live_job=Subquery(live.values("job_id")[:1]),
                live_until=Subquery(live.values("expires_at")[:1]),
            )
        )
        return taken

    @admin.display(description="queues")
    def offered_to(self, slot: Slot) -> str:
        """Name the queues it serves."""
        return ", ".join(slot.queues)

    @admin.display(description="held by job")
    def held_by(self, slot: Any) -> str:
        """Lead to the job that has it, if any."""
        if slot.live_job is None:
            return "free"
        return cells.row_link(Job, slot.live_job, wording.tail(slot.live_job))

    @admin.display(description="time left")
    def time_left(self, slot: Any) -> str:
        """Say how much longer it is taken."""
        if slot.live_until is None:
            return wording.NOTHING
        return cells.time_left(slot.live_until, now=slot.as_of)


@admin.register(PermitPool)
class PermitPoolPage(ConfigurationPage):
    """Permit pools: how many jobs of one account, queue, policy or provider may be reserved."""

    list_display = ("id", "kind", "key", "live", "limit")
    list_filter = ("kind",)
    searched_ids = ("id",)
    searched_texts = ("key",)
    search_fields = ("id", "key")
    search_help_text = "The number of a pool, or an exact key."
    fixed = ("kind", "key")
    edited = ("limit",)
    lists = (("leases", Lease, "pool__id"),)
    fieldsets = ((None, {"fields": ("kind", "key", "limit", "live", "links", "id")}),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        live = Lease.objects.filter(
            pool=OuterRef("pk"), status=LeaseStatus.ACTIVE, expires_at__gt=moment.as_of()
        )
        counted = live.order_by().values("pool").annotate(number=Count("pk")).values("number")
        rows = super().get_queryset(request)
        with_permits: QuerySet[Any] = rows.annotate(permits=Coalesce(Subquery(counted), 0))
        return with_permits

    @admin.display(description="live permits")
    def live(self, pool: Any) -> int:
        """Count the permits that are live by the clock."""
        permits: int = pool.permits
        return permits

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        if not _is_known(PoolKind(obj.kind), obj.key):
            said = f"There is no {obj.kind} named {obj.key!r}: this pool limits nothing as yet."
            self.message_user(request, said, messages.WARNING)


@admin.register(WorkerNode)
class WorkerNodePage(Page):
    """Workers: each incarnation of a process, and when it was last seen."""

    list_display = (
        *("id", "name", "node", "pid", "pool", "state", "serves", "started_at", "seen_at"),
        "stopped_at",
    )
    list_filter = ("state",)
    searched_ids = ("id",)
    searched_texts = ("name", "node")
    search_fields = ("id", "name", "node")
    search_help_text = "The id of a worker, or the exact name of a worker or node."
    lists = (
        ("slots", Slot, "worker__id"),
        ("leases", Lease, "worker__id"),
        ("attempts", Attempt, "worker__id"),
    )
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *("id", "name", "node", "boot_id", "pid", "start_ticks", "queues", "pool"),
                    *("state", "started_at", "seen_at", "stopped_at", "links"),
                )
            },
        ),
    )

    @admin.display(description="queues")
    def serves(self, worker: WorkerNode) -> str:
        """Name the queues it serves."""
        return ", ".join(worker.queues)


@admin.register(ServingPolicy)
class ServingPolicyPage(ConfigurationPage):
    """Serving policies: the bounds of a class of jobs. A change counts from now on."""

    list_display = (
        *("name", "is_open", "lease_ttl", "renew_every", "queue_age_max", "run_time_max"),
        *("attempts_max", "on_bound", "cost_ceiling"),
    )
    ordering = ("name",)
    list_filter = ("is_open",)
    searched_ids = ("id",)
    searched_texts = ("name",)
    search_fields = ("id", "name")
    search_help_text = "The exact name of a policy."
    lists = (("jobs", Job, "policy__id"),)
    fixed = ("name",)
    edited = (
        *("is_open", "lease_ttl", "renew_every", "lease_life_max", "reserved_time_max"),
        *("renewals_max", "queue_age_max", "run_time_max", "provider_wait_max", "stall_limit"),
        *("uncertain_max", "attempts_max", "retry_base", "retry_cap", "on_bound"),
        *("readmit_on_bound", "keep_result", "when_no_permit", "stop_grace"),
        *("cooperative_only", "cost_ceiling", "hold_ttl"),
    )
    fieldsets = (
        (None, {"fields": ("name", "is_open", "links", "id")}),
        (
            "Leases",
            {
                "description": "Durations are [days] hours:minutes:seconds, or seconds alone.",
                "fields": (
                    *("lease_ttl", "renew_every", "lease_life_max", "reserved_time_max"),
                    "renewals_max",
                ),
            },
        ),
        (
            "Waiting and running",
            {
                "fields": (
                    *("queue_age_max", "when_no_permit", "run_time_max", "provider_wait_max"),
                    *("stall_limit", "stop_grace", "cooperative_only", "keep_result"),
                )
            },
        ),
        (
            "After a loss or a bound",
            {
                "fields": (
                    *("attempts_max", "retry_base", "retry_cap", "on_bound", "readmit_on_bound"),
                    "uncertain_max",
                )
            },
        ),
        ("Money", {"fields": ("cost_ceiling", "hold_ttl")}),
    )

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "attempts_max":
            kwargs["min_value"] = 1
        return super().formfield_for_dbfield(db_field, request, **kwargs)


@admin.register(Epoch)
class EpochPage(Page):
    """Epochs: every raise after which older fencing tokens count no more."""

    list_display = ("number", "raised_at", "actor", "reason")
    fieldsets = ((None, {"fields": ("number", "raised_at", "actor", "reason")}),)


@admin.register(ControlPass)
class ControlPassPage(Page):
    """Passes of the control plane: when each last finished, and what it did."""

    list_display = ("name", "finished_at", "summary")
    ordering = ("name",)
    fieldsets = ((None, {"fields": ("name", "finished_at", "summary")}),)
