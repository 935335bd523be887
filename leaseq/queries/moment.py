"""The authority's time, for pages that say how much of something is left (SPEC H1)."""

from datetime import datetime

from leaseq.db import clock


def as_of() -> datetime:
    """Return the authority's time now; to show by, since a decision reads it under its lock."""
    return clock.read()
