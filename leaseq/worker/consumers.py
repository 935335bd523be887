"""What the Celery app would take and who takes it: asked of the app and of its workers."""

from celery import Celery, current_app

from leaseq.conf import settings
from leaseq.worker.bell import SEND_ERRORS

# Whoever may write to the broker could run any code in a worker that takes these.
UNSAFE_CONTENT = frozenset(
    {"pickle", "application/x-python-serialize", "yaml", "application/x-yaml"}
)
ANSWER_WITHIN_SECONDS = 1.0


def unsafe_content() -> list[str]:
    """Return the content types that Celery's current app takes and must not (SPEC A7)."""
    conf = current_app.conf
    taken = {*(conf.accept_content or ()), *(conf.result_accept_content or ())}
    return sorted(taken & UNSAFE_CONTENT)


def control_queue_is_consumed(app: Celery) -> bool | None:
    """Ask the workers whether one of them consumes the control queue (case I5).

    None where nobody can know: no worker answered in time, or the broker cannot be asked.
    Waits for ANSWER_WITHIN_SECONDS.
    """
    try:
        answers = app.control.inspect(timeout=ANSWER_WITHIN_SECONDS).active_queues()
    except SEND_ERRORS:
        return None
    if not answers:
        return None
    name = settings().control_queue
    return any(queue["name"] == name for queues in answers.values() for queue in queues)
