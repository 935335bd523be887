"""The nouns: fields, constraints and indexes; each sentence of SPEC that says never is here."""

from leaseq.models.authority import ControlPass, Epoch
from leaseq.models.findings import Finding
from leaseq.models.jobs import Attempt, Job, JobEvent
from leaseq.models.leases import Lease, PermitPool, Slot, WorkerNode
from leaseq.models.money import Account, Hold, LedgerEntry, Price, UsageRecord
from leaseq.models.outbox import OutboxMessage
from leaseq.models.policies import ServingPolicy
from leaseq.models.providers import ProviderRequest

__all__ = [
    "Account",
    "Attempt",
    "ControlPass",
    "Epoch",
    "Finding",
    "Hold",
    "Job",
    "JobEvent",
    "Lease",
    "LedgerEntry",
    "OutboxMessage",
    "PermitPool",
    "Price",
    "ProviderRequest",
    "ServingPolicy",
    "Slot",
    "UsageRecord",
    "WorkerNode",
]
