"""People at the admin, and lists for them to see."""

from collections.abc import Callable
from functools import partial

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from leaseq.models import Account, PermitPool, Price, ServingPolicy
from tests.admin.rows import browser, fill_up


@pytest.fixture
def superuser(db: None) -> Client:
    """The browser of somebody who may do everything."""
    return browser(User.objects.create_superuser("root"))


@pytest.fixture
def viewer(db: None) -> Client:
    """The browser of somebody who may look at everything and change nothing."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="leaseq", codename__startswith="view_")
    )
    return browser(user)


@pytest.fixture
def operator(db: None) -> Client:
    """The browser of somebody who may view and change jobs."""
    user = User.objects.create_user("olga", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=["view_job", "change_job", "view_account"])
    )
    return browser(user)


@pytest.fixture
def fill(account: Account, policy: ServingPolicy, prices: list[Price]) -> Callable[..., None]:
    """Make the list of every model so many rows longer, counting from `first`."""
    PermitPool.objects.create(kind="account", key=account.name, limit=1000)
    return partial(fill_up, account=account.name, policy=policy.name)
