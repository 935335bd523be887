"""Erase payloads and results whose retention is over; never the ledger or events (SPEC G1)."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from leaseq.conf import settings
from leaseq.controllers import pages
from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.db import clock
from leaseq.models import Job
from leaseq.services import retention

NAME = "prune"
ACTOR = "control:prune"


def run_once(limits: PassLimits) -> PassSummary:
    """Erase what is due, the longest ended first, and count jobs `erased`."""
    run = PassRun(NAME, limits=limits)
    page = pages.by_time(_due, field="ended_at", batch=limits.batch)
    run.walk("jobs", page=page, act=_erase)
    return run.finish()


def _due() -> "QuerySet[Any]":
    keep = timedelta(days=settings().retention_days)
    return Job.objects.filter(
        settled_at__isnull=False, erased_at__isnull=True, ended_at__lte=clock.read() - keep
    )


def _erase(job_id: UUID) -> str:
    return "erased" if retention.erase(job_id, actor=ACTOR) else "nothing_due"
