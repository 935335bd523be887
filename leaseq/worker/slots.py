"""Find the capacity of this node: GPUs by NVML, or declared slots; pin one device a process.

A GPU is named by its UUID, never by its index, so that a slot row stays the same unit over
restarts and reorderings (SPEC D2).
"""

import importlib.util
import os
from collections.abc import Sequence

from leaseq.errors import Misconfigured

DEVICES_VARIABLE = "LEASEQ_DEVICES"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

if importlib.util.find_spec("pynvml") is not None:
    import pynvml
else:
    pynvml = None  # type: ignore[assignment,unused-ignore]


def find_devices() -> list[str]:
    """Return the UUIDs of the GPUs that this worker may use; none without NVML or a driver.

    All of the node, or those that the operator names in CUDA_VISIBLE_DEVICES.
    """
    if pynvml is None:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        found = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return _allowed(found, os.environ.get(VISIBLE_VARIABLE))


def _allowed(found: Sequence[str], named: str | None) -> list[str]:
    """Return the devices that CUDA would show: all, or those named by index or start of UUID.

    As in CUDA, the first name that fits none ends the list.
    """
    if named is None:
        return list(found)
    allowed: list[str] = []
    for name in (one.strip() for one in named.split(",")):
        if name.isdecimal():
            fits = list(found[int(name) :][:1])
        else:
            fits = [one for one in found if name and one.startswith(name)]
        if len(fits) != 1:
            break
        allowed += fits
    return allowed


def share_out(
    *, worker_name: str, concurrency: int, declared: int | None, devices: Sequence[str]
) -> list[str]:
    """Return one unit per pool process: a GPU each where there are any, else declared ones.

    Raises Misconfigured where the pool is larger than the capacity: a process without a slot
    could claim nothing (SPEC D2).
    """
    if declared is None and devices:
        units = list(devices)
        what = f"{len(devices)} GPUs were found"
    else:
        count = concurrency if declared is None else declared
        units = [f"{worker_name}:{index}" for index in range(count)]
        what = f"{count} slots are declared"
    if concurrency > len(units):
        raise Misconfigured(
            f"the pool has {concurrency} processes and {what}; start the worker with "
            f"--concurrency={len(units)}, or declare more in LEASEQ['SLOTS']"
        )
    return units[:concurrency]


def pin(index: int) -> str | None:
    """Make one device visible to this pool process, and return it; None without GPUs.

    Where more slots are declared than there are devices, they share them in turn.
    """
    devices = [one for one in os.environ.get(DEVICES_VARIABLE, "").split(",") if one]
    if not devices:
        return None
    device = devices[index % len(devices)]
    os.environ[VISIBLE_VARIABLE] = device
    return device
