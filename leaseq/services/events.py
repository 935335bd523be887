"""The only writer of a job's row after admission, and of its audit trail (SPEC A5, P19).

A `JobStory` gathers what one verb changes of one locked job. It writes the job once, repeating
the state and version that were read under the lock, and one event per change in the same
transaction.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from leaseq.errors import LeaseqBug
from leaseq.models import Job, JobEvent
from leaseq.vocabulary import EndReason, JobState

REASON_LENGTH_MAX = 300


def storable(text: str, *, length_max: int) -> str:
    """Return the text as PostgreSQL can keep it: no NUL, no half of a surrogate pair, cut."""
    whole = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return whole[:length_max]


class JobStory:
    """The changes of one verb to one job that is locked FOR NO KEY UPDATE."""

    def __init__(self, job: Job, *, actor: str, now: datetime) -> None:
        self.job = job
        self.actor = actor
        # An authority whose clock was stepped back is clamped: no story is told backwards (L7).
        self.now = max(now, job.changed_at)
        self._read_version = job.version
        self._read_state = JobState(job.state)
        self._changed: dict[str, Any] = {}
        self._events: list[JobEvent] = []

    def change(self, **values: Any) -> None:
        """Set fields of the job; they are written with the next `save`."""
        for name, value in values.items():
            setattr(self.job, name, value)
        self._changed.update(values)

    def tell(
        self,
        kind: str,
        *,
        to_state: JobState | None = None,
        attempt_id: UUID | None = None,
        lease_id: UUID | None = None,
        reason: EndReason | str = "",
        **data: Any,
    ) -> None:
        """Record one event, moving the job's state where `to_state` is given."""
        before = JobState(self.job.state)
        after = before if to_state is None else to_state
        self.job.version += 1
        self.job.state = after
        self._events.append(
            JobEvent(
                job=self.job,
                version=self.job.version,
                kind=kind,
                from_state=before,
                to_state=after,
                attempt_id=attempt_id,
                lease_id=lease_id,
                actor=self.actor,
                reason=storable(str(reason), length_max=REASON_LENGTH_MAX),
                at=self.now,
                data=data,
            )
        )

    def save(self) -> None:
        """Write the job and its events; raises LeaseqBug if the locked row was not as read."""
        # The time of the last event, which a change without one does not move.
        changed_at = self.now if self._events else self.job.changed_at
        changed = Job.objects.filter(
            pk=self.job.pk, version=self._read_version, state=self._read_state
        ).update(
            version=self.job.version,
            state=self.job.state,
            changed_at=changed_at,
            **self._changed,
        )
        if changed != 1:
            raise LeaseqBug("a locked job changed under its lock", job_id=self.job.pk)
        JobEvent.objects.bulk_create(self._events)
        self.job.changed_at = changed_at
        self._read_version, self._read_state = self.job.version, JobState(self.job.state)
        self._changed, self._events = {}, []
