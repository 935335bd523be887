"""Messages still to be sent, or to be sent again: the row is the outbox (SPEC D5, D6)."""

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from django.db.models import F

from leaseq.conf import settings
from leaseq.db import clock
from leaseq.db.transactions import atomic
from leaseq.models import OutboxMessage
from leaseq.queries import leases as lease_queries
from leaseq.services.events import storable
from leaseq.services.ports import Doorbell

BACKOFF_DOUBLINGS_MAX = 6
ERROR_LENGTH_MAX = 300
RETRY_AFTER = timedelta(seconds=1)


def take_due(*, limit: int) -> list[Doorbell]:
    """Claim due messages and move each one's next sending on, before anything is sent.

    A message that was sent before goes out again only while its queue has a free slot, after the
    claim grace, which doubles each time. Two passes at once take different rows.
    """
    grace = timedelta(seconds=settings().claim_grace_seconds)
    with atomic():
        now = clock.read()
        rows = list(
            OutboxMessage.objects.get_queryset()
            .select_for_update(skip_locked=True)
            .filter(send_at__lte=now)
            .order_by("send_at")[:limit]
        )
        free = {
            queue: lease_queries.free_slots(queue, now=now)
            for queue in {row.queue for row in rows if row.sends}
        }
        due = []
        for row in rows:
            again = row.sends > 0
            if again and not free[row.queue]:
                row.send_at = now + grace
                continue
            row.send_at = now + grace * 2 ** min(row.sends, BACKOFF_DOUBLINGS_MAX)
            row.sends += 1
            due.append(Doorbell(attempt_id=row.attempt_id, task=row.task, queue=row.queue))
        OutboxMessage.objects.bulk_update(rows, ["send_at", "sends"])
    return due


def note_failures(errors: Mapping[UUID, str]) -> None:
    """Write why the broker did not take these messages, and let each be tried again soon."""
    if not errors:
        return
    with atomic():
        now = clock.read()
        for attempt_id, error in errors.items():
            # What the broker did not take was not sent: neither the grace nor a free slot counts.
            OutboxMessage.objects.filter(attempt_id=attempt_id, sends__gt=0).update(
                send_at=now + RETRY_AFTER,
                sends=F("sends") - 1,
                last_error=storable(error, length_max=ERROR_LENGTH_MAX),
            )
