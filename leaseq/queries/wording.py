"""How people read spans, quantities, ids and words: one way for the terminal and the admin."""

from datetime import timedelta
from decimal import Decimal
from uuid import UUID

NOTHING = "–"
SECOND = timedelta(seconds=1)
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
ID_TAIL = 12


def span(length: timedelta) -> str:
    """Say how long something takes: `24 s`, `3 min`, `2 h 5 min`; never negative."""
    if length < SECOND:
        return "0 s" if length <= timedelta(0) else "< 1 s"
    left = int(length.total_seconds())
    parts = []
    for unit, seconds in UNITS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    # Two units are as exact as anybody reads, and seconds matter only below two minutes.
    shown = (
        parts[:2] if length < timedelta(minutes=2) or length >= timedelta(hours=1) else parts[:1]
    )
    return " ".join(shown)


def number(quantity: Decimal) -> str:
    """Write a quantity exactly, without zeros behind the point that say nothing."""
    text = f"{quantity:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tail(key: UUID) -> str:
    """Return the end of an id: its beginning is its time, and alike for neighbours."""
    return str(key)[-ID_TAIL:]


def words(state: str | None) -> str:
    """Write a word of the vocabulary for people."""
    return NOTHING if state is None else str(state).replace("_", " ")
