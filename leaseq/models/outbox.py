"""OutboxMessage: a doorbell still to be rung, or to be rung again (SPEC D5, D6)."""

from django.db import models

from leaseq.models.fields import Record
from leaseq.models.jobs import Attempt


class OutboxMessage(Record):
    """The message of one queued attempt; it is deleted when the attempt leaves `queued`."""

    attempt = models.OneToOneField(
        Attempt, on_delete=models.PROTECT, primary_key=True, related_name="message"
    )
    task = models.CharField(max_length=200)
    queue = models.CharField(max_length=100)
    sends = models.PositiveIntegerField(default=0)
    send_at = models.DateTimeField(help_text="When to send, or to send again.")
    last_error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        indexes = [models.Index(fields=["send_at"], name="outbox_due")]

    def __str__(self) -> str:
        return f"message for {self.attempt_id}"
