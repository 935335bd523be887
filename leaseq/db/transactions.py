"""The authority's connection and transactions: one alias, read in one place."""

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from leaseq.conf import settings


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the authority."""
    return connections[settings().database]


def drop_if_dead() -> None:
    """Close a kept connection that no longer works, so that the next statement opens a new one."""
    kept = connection()
    if not kept.in_atomic_block:
        kept.close_if_unusable_or_obsolete()


def atomic() -> transaction.Atomic:
    """Open a transaction at the authority, or a savepoint inside the caller's."""
    return transaction.atomic(using=settings().database)


def on_commit(act: Callable[[], Any]) -> None:
    """Do this once the outermost transaction has committed; never if it rolls back."""
    transaction.on_commit(act, using=settings().database, robust=True)
