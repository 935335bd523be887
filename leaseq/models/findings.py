"""Finding: something a person should look at, with evidence (SPEC G3)."""

from django.db import models
from django.db.models import Q

from leaseq.models.fields import Record
from leaseq.models.jobs import Job


class Finding(Record):
    """An anomaly of one kind about one job; at most one is open at a time (SPEC G3)."""

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=50)
    severity = models.CharField(max_length=20)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="findings")
    evidence = models.JSONField(default=dict)
    suggested_action = models.CharField(max_length=300)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "job"],
                condition=Q(closed_at__isnull=True),
                name="one_open_finding_per_kind_and_job",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.job_id}"
