"""Reserve waiting jobs while live slots can soon take them, and send their messages (SPEC D5)."""

from functools import partial

from leaseq.controllers import publish
from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.db import clock
from leaseq.queries import leases as lease_queries
from leaseq.services import scheduling

NAME = "schedule"


def run_once(limits: PassLimits) -> PassSummary:
    """Queue what fits, for every served queue, and publish in the same pass.

    Counts jobs `queued` and, by reason, those that keep their place; the messages of the publish
    pass are counted too. A queue that cannot be scheduled does not stop the others.
    """
    run = PassRun(NAME, limits=limits)
    queues = lease_queries.served_queues(now=clock.read())
    for done, queue in enumerate(queues):
        run.share(parts=len(queues) - done)
        run.guarded(partial(_fill, queue, run=run), of=queue)
    published = publish.run_once(limits)
    for word, times in published.counts.items():
        run.count(word, times=times)
    if not published.complete:
        run.stop_short()
    return run.finish()


def _fill(queue: str, *, run: PassRun) -> None:
    while (room := scheduling.room(queue, now=clock.read())) > 0:
        reserved = scheduling.reserve(queue, limit=min(room, run.limits.batch))
        run.count("queued", times=len(reserved.queued))
        if not reserved.queued:
            for reason, times in reserved.refused.items():
                run.count(reason, times=times)
            return
        if not run.has_time():
            run.stop_short()
            return
