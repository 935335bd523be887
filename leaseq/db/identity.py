"""Identifiers and chance come through this door (PROMISES 5, SPEC 0).

Ids are UUIDs of version 7: unguessable in 74 bits, and in the order of their making, so that
indexes stay dense. Their time part orders rows and decides nothing.
"""

import random
import secrets
import time
from uuid import UUID

from leaseq.db.transactions import connection
from leaseq.rules.ownership import Fence

_chance = random.SystemRandom()


def new_id() -> UUID:
    """Return a new identifier."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


def jitter() -> float:
    """Return a number from 0 up to, and not including, 1."""
    return _chance.random()


def draw_fences(count: int) -> list[Fence]:
    """Return new fencing tokens, each above every one drawn before.

    Call it under the lock of what is granted, so that tokens grow in the order of grants.
    """
    with connection().cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT coalesce(max(number), 1) FROM leaseq_epoch), nextval('leaseq_fence') "
            "FROM generate_series(1, %s)",
            [count],
        )
        return [Fence(epoch=epoch, counter=counter) for epoch, counter in cursor.fetchall()]
