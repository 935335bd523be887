"""Fixtures of the tests of verbs alone."""

import pytest

from leaseq.models import PermitPool
from leaseq.vocabulary import PoolKind


@pytest.fixture
def permit(db: None) -> PermitPool:
    """A pool in which every job on the queue `gpu` needs a permit."""
    return PermitPool.objects.create(kind=PoolKind.QUEUE, key="gpu", limit=100)
