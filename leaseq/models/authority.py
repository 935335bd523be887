"""Epoch and ControlPass: which fencing tokens count, and when each pass last ran."""

from django.db import models

from leaseq.models.fields import Record


class Epoch(Record):
    """One raise of the epoch, by promotion or an operator (SPEC 0, fencing token).

    Epoch 1 is where every installation begins, and has no row.
    """

    number = models.PositiveIntegerField(primary_key=True)
    raised_at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    reason = models.CharField(max_length=300)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(number__gte=2), name="an_epoch_is_raised_above_the_first"
            ),
        ]

    def __str__(self) -> str:
        return f"epoch {self.number}"


class ControlPass(Record):
    """When a pass of the control plane last finished and what it did (SPEC G1)."""

    name = models.CharField(max_length=50, primary_key=True)
    finished_at = models.DateTimeField()
    summary = models.JSONField(default=dict)

    class Meta:
        verbose_name_plural = "control passes"

    def __str__(self) -> str:
        return self.name
