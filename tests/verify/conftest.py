"""One installation for all corruptions: each is planted in a transaction that is rolled back."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from pytest_django import DjangoDbBlocker

from leaseq.db import clock
from tests.verify.world import Time, World, build


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """The installation, committed, and removed after the last test of the module."""
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patched:
        time = Time(clock.read)
        patched.setattr(clock, "read", time.read)
        try:
            yield build(time)
        finally:
            call_command("flush", interactive=False, verbosity=0)
