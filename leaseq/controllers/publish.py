"""Send the outbox, outside any transaction, and write down what was not taken (SPEC D5)."""

from collections.abc import Callable, Sequence
from uuid import UUID

from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.services import outbox, ports
from leaseq.services.ports import Doorbell

NAME = "publish"
Publish = Callable[[Sequence[Doorbell]], dict[UUID, str]]
# A broker that is away may cost seconds a message, so it is asked with a few at a time.
AT_ONCE = 5


def run_once(limits: PassLimits) -> PassSummary:
    """Send due messages and count those `sent` and `not_sent`.

    A message that was not sent, for want of a broker or of time, is due again a second later.
    Raises Misconfigured where this process has no Celery app to send by.
    """
    run = PassRun(NAME, limits=limits)
    publish = ports.installed().publish
    while due := outbox.take_due(limit=limits.batch):
        errors = _send(due, publish=publish, run=run)
        outbox.note_failures(errors)
        run.count("sent", times=len(due) - len(errors))
        run.count("not_sent", times=len(errors))
        if errors or not run.has_time():
            run.stop_short()
            break
    return run.finish()


def _send(due: Sequence[Doorbell], *, publish: Publish, run: PassRun) -> dict[UUID, str]:
    """Send in small groups; once a whole group fails, or time is up, the rest is not tried."""
    errors: dict[UUID, str] = {}
    for start in range(0, len(due), AT_ONCE):
        group = due[start : start + AT_ONCE]
        failed = publish(group)
        errors |= failed
        if len(failed) == len(group) or not run.has_time():
            why = next(iter(failed.values()), "the pass ran out of time")
            errors |= {one.attempt_id: f"not tried: {why}" for one in due[start + AT_ONCE :]}
            break
    return errors
