"""Pages of rows that look due, each behind a key: no offset, so no row is passed over."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from leaseq.controllers.base import Row


def by_id(
    due: Callable[[], "QuerySet[Any]"], *, names: str, batch: int
) -> Callable[[str], Sequence[Row]]:
    """Return pages of due rows in the order of their ids, each naming the id in field `names`."""

    def page(after: str) -> list[Row]:
        rows = due().filter(pk__gt=UUID(after)) if after else due()
        found = rows.order_by("pk").values_list("pk", names)[:batch]
        return [(str(pk), row_id) for pk, row_id in found]

    return page


def by_time(
    due: Callable[[], "QuerySet[Any]"], *, field: str, batch: int
) -> Callable[[str], Sequence[Row]]:
    """Return pages of due rows in the order of a time and then of their ids."""

    def page(after: str) -> list[Row]:
        rows = due()
        if after:
            time, _, pk = after.partition(" ")
            at = datetime.fromisoformat(time)
            rows = rows.filter(Q(**{f"{field}__gt": at}) | Q(**{field: at}, pk__gt=UUID(pk)))
        found = rows.order_by(field, "pk").values_list(field, "pk")[:batch]
        return [(f"{at.isoformat()} {pk}", pk) for at, pk in found]

    return page
