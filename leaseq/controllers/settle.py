"""Close the holds of ended jobs, each by its verdict, those due longest first (SPEC F4, L7)."""

from typing import Any

from django.db.models import QuerySet

from leaseq.controllers import pages
from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.db import clock
from leaseq.models import Job
from leaseq.services import holds

NAME = "settle"


def run_once(limits: PassLimits) -> PassSummary:
    """Settle what is due; count `settled`, `released`, `expired`, or why a hold is kept."""
    run = PassRun(NAME, limits=limits)
    page = pages.by_time(_due, field="settle_at", batch=limits.batch)
    run.walk("jobs", page=page, act=holds.settle)
    return run.finish()


def _due() -> "QuerySet[Any]":
    return Job.objects.filter(settle_at__lte=clock.read())
