"""Jittered delays (SPEC C2, E6, M6); the chance is drawn by the caller."""

from datetime import timedelta

_EXPONENT_MAX = 62


def delay(attempt: int, *, base: timedelta, cap: timedelta, jitter: float) -> timedelta:
    """Return how long to wait before try number `attempt` + 1, counted from 1.

    The wait doubles with each attempt up to `cap`; `jitter`, drawn from [0, 1), takes up to
    half of it away, so that what failed together does not come back together.

    Raises ValueError where an argument lies outside its range.
    """
    if attempt < 1:
        message = f"attempt is {attempt}; attempts are counted from 1"
        raise ValueError(message)
    if not 0 <= jitter < 1:
        message = f"jitter is {jitter}; draw it from [0, 1)"
        raise ValueError(message)
    if base <= timedelta(0) or cap < base:
        message = f"base is {base} and cap is {cap}; a positive base not above the cap is needed"
        raise ValueError(message)
    doublings = min(attempt - 1, _EXPONENT_MAX)
    # Compared by division: a doubled timedelta overflows long before the cap is met.
    full = cap if cap / base <= 2**doublings else base * 2**doublings
    return full * (1 - jitter / 2)
