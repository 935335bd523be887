"""Write when each pass of the control plane last finished, and what it did (SPEC G1)."""

from collections.abc import Mapping

from leaseq.db import clock
from leaseq.models import ControlPass


def note(
    name: str, *, counts: Mapping[str, int], complete: bool, left_off: Mapping[str, str]
) -> None:
    """Write that a pass finished just now, over what was written before; safe to repeat.

    `left_off` says behind which row each unfinished part stopped, for the next pass to go on.
    """
    ControlPass.objects.update_or_create(
        name=name,
        defaults={
            "finished_at": clock.read(),
            "summary": {
                "counts": dict(counts),
                "complete": complete,
                "left_off": dict(left_off),
            },
        },
    )


def left_off(name: str) -> dict[str, str]:
    """Return behind which row each part of this pass stopped, where it was not finished."""
    last = ControlPass.objects.filter(name=name).first()
    return {} if last is None else dict(last.summary.get("left_off", {}))
