"""The one Celery task of the control plane: a tick names a pass, and it runs (SPEC G1)."""

from typing import Any

from celery import Task, shared_task

from leaseq.conf import settings
from leaseq.worker import beat, control


class ControlTask(Task[Any, Any]):
    """A task that goes to the control queue, whoever sends it and however."""

    @property
    def queue(self) -> str:
        """The control queue, as the settings name it when it is sent."""
        return settings().control_queue


@shared_task(base=ControlTask, name=beat.PASS_TASK, ignore_result=True)
def run_pass(*, name: str, **_of_a_newer_version: object) -> None:
    """Run one pass of the control plane by its name.

    Raises Misconfigured for a name that no pass has. A pass that is lost or comes twice does no
    harm: the next tick does the work.
    """
    control.run(name)
