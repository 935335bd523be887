"""Who may act for a lease now: the fence, the attempt and the authority's clock (SPEC N, A5)."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from leaseq.vocabulary import LeaseStatus, TransitionRefusal


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Fence:
    """A fencing token: the epoch first, then the number drawn under the resource's lock."""

    epoch: int
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerProof:
    """What an owner shows with each act; a heartbeat does not make it stale (SPEC N)."""

    lease_id: UUID
    attempt_id: UUID
    fence: Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """One lease row as read under its lock.

    `first_reserved_at` and `renewals_before` are carried over a transfer, so that a change
    of owner refreshes no bound.
    """

    lease_id: UUID
    attempt_id: UUID
    status: LeaseStatus
    fence: Fence
    version: int
    expires_at: datetime
    created_at: datetime
    first_reserved_at: datetime
    renewal_count: int
    renewals_before: int
    renewal_key: str | None
    renewed_at: datetime | None


def lease_is_live(lease: LeaseFacts, *, now: datetime) -> bool:
    """Say whether the lease grants its right at `now`; at expires_at it no longer does (M2)."""
    return lease.status is LeaseStatus.ACTIVE and now < lease.expires_at


def fence_matches(proof: OwnerProof, lease: LeaseFacts) -> bool:
    """Say whether the proof names this very lease with its current fencing token."""
    return proof.lease_id == lease.lease_id and proof.fence == lease.fence


def judge_ownership(
    proof: OwnerProof, lease: LeaseFacts | None, *, now: datetime
) -> TransitionRefusal | None:
    """Name why the caller may not act for the lease, or return None where it may.

    Identity is judged before state: who is not the owner learns nothing about the job. A
    lease that does not exist and a stale token get the same answer.
    """
    if lease is None or not fence_matches(proof, lease):
        return TransitionRefusal.STALE_OWNER
    if proof.attempt_id != lease.attempt_id:
        return TransitionRefusal.NOT_THE_CURRENT_ATTEMPT
    if lease.status is not LeaseStatus.ACTIVE:
        return TransitionRefusal.LEASE_ENDED
    if not lease_is_live(lease, now=now):
        return TransitionRefusal.LEASE_EXPIRED
    return None
