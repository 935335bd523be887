"""The holder's clock: counts from boot, through suspension, and cannot be stepped (SPEC C1)."""

import time
from collections.abc import Callable
from functools import partial

# CLOCK_BOOTTIME is Linux's; elsewhere CLOCK_MONOTONIC counts through sleep where
# time.monotonic may not (macOS).
CLOCKS = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")


def best_clock(source: object) -> Callable[[], float]:
    """Pick the first of CLOCKS that `source` (the time module) has, else its `monotonic`."""
    for name in CLOCKS:
        if hasattr(source, name):
            return partial(time.clock_gettime, getattr(source, name))
    return time.monotonic


_read = best_clock(time)


def boot_seconds() -> float:
    """Read the seconds since boot; the same number in every process of this machine.

    Stepping or slewing the wall clock changes nothing. Only differences mean something.
    """
    return _read()
