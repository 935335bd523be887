"""What only services write cannot be written here, by no button and by no direct POST."""

from collections.abc import Callable

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from leaseq.models import Account, Job, PermitPool, Price, ServingPolicy
from tests.admin.rows import MODELS

pytestmark = pytest.mark.django_db
ADDED = {Account, PermitPool, Price, ServingPolicy}
CHANGED = ADDED - {Price}


def address(model: type[Model], what: str, *args: str) -> str:
    return reverse(f"admin:leaseq_{model.__name__.lower()}_{what}", args=args)


def everything() -> dict[str, list[dict[str, object]]]:
    return {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in MODELS
    }


def forged(model: type[Model]) -> dict[str, str]:
    """Every field of the model, as a form of it would send them."""
    return {one.name: "1" for one in model._meta.concrete_fields} | {"_save": "Save"}


def test_no_row_is_deleted_by_any_door(superuser: Client, fill: Callable[..., None]) -> None:
    fill(1, first=0)
    before = everything()
    for model in MODELS:
        row = model._default_manager.first()
        assert row is not None
        key = quote(row.pk)
        page = superuser.get(address(model, "change", key)).content.decode()
        assert address(model, "delete", key) not in page
        answer = superuser.post(address(model, "delete", key), {"post": "yes"})
        assert answer.status_code == 403
        listed = address(model, "changelist")
        assert "delete_selected" not in superuser.get(listed).content.decode()
        superuser.post(
            listed, {"action": "delete_selected", ACTION_CHECKBOX_NAME: str(row.pk), "post": "yes"}
        )
    assert everything() == before


def test_what_services_write_is_neither_added_nor_changed(
    superuser: Client, fill: Callable[..., None]
) -> None:
    fill(1, first=0)
    before = everything()
    for model in MODELS:
        row = model._default_manager.first()
        assert row is not None
        if model not in ADDED:
            assert superuser.get(address(model, "add")).status_code == 403
            assert superuser.post(address(model, "add"), forged(model)).status_code == 403
        if model not in CHANGED:
            url = address(model, "change", quote(row.pk))
            assert superuser.post(url, forged(model)).status_code == 403
    assert everything() == before


def test_who_may_only_look_changes_nothing_at_all(
    viewer: Client, fill: Callable[..., None]
) -> None:
    fill(1, first=0)
    before = everything()
    for model in MODELS:
        row = model._default_manager.first()
        assert row is not None
        key = quote(row.pk)
        for what, args in (("add", []), ("change", [key]), ("delete", [key])):
            answer = viewer.post(address(model, what, *args), forged(model) | {"post": "yes"})
            assert answer.status_code == 403, (model, what)
    assert everything() == before


def test_who_may_only_look_is_offered_no_action_and_may_post_none(viewer: Client, job: Job) -> None:
    before = everything()
    url = address(Job, "changelist")
    assert "cancel_selected" not in viewer.get(url).content.decode()
    posted = {
        "action": "cancel_selected",
        ACTION_CHECKBOX_NAME: str(job.pk),
        "confirmed": "yes",
        "reason": "because",
    }
    viewer.post(url, posted)
    assert everything() == before
