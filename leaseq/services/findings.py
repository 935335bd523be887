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
) -> bool:
    """Open a finding under the job's lock, or give the open one of its kind new evidence.

    Returns whether there was anything new to tell.
    """
    found = Finding.objects.filter(kind=kind, job=job, closed_at__isnull=True).first()
    if found is not None:
        if found.evidence == dict(evidence):
            return False
        found.evidence = dict(evidence)
        found.save(update_fields=["evidence"])
        return True
    Finding.objects.create(
        kind=kind,
        job=job,
        severity=severity,
        evidence=dict(evidence),
        suggested_action=suggested_action,
        opened_at=now,
    )
    return True


def close_findings(*kinds: str, job: Job, now: datetime) -> None:
    """Close the open findings of these kinds for a job: their cause is gone."""
    Finding.objects.filter(kind__in=kinds, job=job, closed_at__isnull=True).update(closed_at=now)
