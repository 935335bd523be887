"""Leased tasks that show where they are through files, so that tests wait on signals."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from celery import shared_task

from leaseq.api import Lease, leased_task

TICK_S = 0.02


def leave(path: str, text: str = "") -> None:
    """Make a file appear with all of its text."""
    draft = Path(f"{path}.draft")
    draft.write_text(text)
    draft.replace(path)


@leased_task(queue="gpu", name="journey.add")
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@leased_task(queue="gpu", name="journey.whoami")
def whoami() -> dict[str, Any]:
    """Say which process ran this."""
    return {"pid": os.getpid(), "parent": os.getppid()}


@leased_task(queue="gpu", name="journey.fail")
def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@leased_task(takes_lease=True, queue="gpu", name="journey.hold")
def hold(lease: Lease, folder: str) -> str:
    """Say `started-N`, work until `go` appears, and stop once the lease is lost."""
    leave(f"{folder}/started-{lease.attempt_number}", str(os.getpid()))
    while not Path(f"{folder}/go").exists():
        if lease.lost:
            lease.guard()
        time.sleep(TICK_S)
    return f"attempt {lease.attempt_number}"


@leased_task(takes_lease=True, queue="gpu", name="journey.deaf")
def deaf(lease: Lease, folder: str) -> str:
    """Say `started-N` and work until `go` appears, never looking at the lease."""
    leave(f"{folder}/started-{lease.attempt_number}", str(os.getpid()))
    while not Path(f"{folder}/go").exists():
        time.sleep(TICK_S)
    return f"attempt {lease.attempt_number}"


@leased_task(takes_lease=True, queue="gpu", name="journey.hog")
def hog(lease: Lease, folder: str, seconds: int) -> str:
    """Hold the GIL in one C call for so many seconds, then see whether the lease lives."""
    leave(f"{folder}/started-{lease.attempt_number}", str(os.getpid()))
    # PyDLL does not let go of the GIL, as a long call of an extension module would not.
    ctypes.PyDLL(None).sleep(seconds)
    lease.guard()
    return f"attempt {lease.attempt_number}"


@leased_task(takes_lease=True, queue="gpu", name="journey.suicide")
def suicide(lease: Lease, folder: str) -> None:
    """Count a start and kill the own process."""
    leave(f"{folder}/started-{lease.attempt_number}")
    os.kill(os.getpid(), 9)


@leased_task(takes_lease=True, queue="gpu", name="journey.again")
def again(lease: Lease) -> int:
    """Ask for a retry in the first attempt."""
    if lease.attempt_number == 1:
        raise again.retry(exc=ValueError("not yet"))
    return lease.attempt_number


@shared_task(name="journey.plain")
def plain(folder: str) -> None:
    """Be a task of plain Celery beside the leased ones."""
    leave(f"{folder}/plain")
