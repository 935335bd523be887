"""Open and close findings: at most one open of a kind for a job (SPEC G3)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from leaseq.models import Finding, Job


def open_finding(
    kind: str,
    *,
    job: Job,
    severity: str,
    evidence: Mapping[str, Any],
    suggested_action: str,
    now: datetime,
) -> None:
    """Open a finding under the job's lock, unless one of its kind is open."""
    if Finding.objects.filter(kind=kind, job=job, closed_at__isnull=True).exists():
        return
    Finding.objects.create(
        kind=kind,
        job=job,
        severity=severity,
        evidence=dict(evidence),
        suggested_action=suggested_action,
        opened_at=now,
    )


def close_findings(*kinds: str, job: Job, now: datetime) -> None:
    """Close the open findings of these kinds for a job: their cause is gone."""
    Finding.objects.filter(kind__in=kinds, job=job, closed_at__isnull=True).update(closed_at=now)
