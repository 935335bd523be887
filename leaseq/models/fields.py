"""Field types that say what SPEC demands: exact money, closed lists, the authority's alias."""

from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

from django.db import models

from leaseq.conf import settings

MONEY_DIGITS = 29
MONEY_PLACES = 9

M = TypeVar("M", bound=models.Model)


class MoneyField(models.DecimalField):  # type: ignore[type-arg]
    """Exact fixed point with nine places (SPEC F1)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_digits"] = MONEY_DIGITS
        kwargs["decimal_places"] = MONEY_PLACES
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["max_digits"], kwargs["decimal_places"]
        return name, path, args, kwargs


def word_field(words: type[StrEnum], **kwargs: Any) -> "models.CharField[Any, Any]":
    """Return a CharField whose choices are a closed list of words."""
    choices = [(word.value, word.value.replace("_", " ")) for word in words]
    return models.CharField(max_length=32, choices=choices, **kwargs)


def only_words(field: str, words: type[StrEnum], name: str) -> models.CheckConstraint:
    """Return the CHECK that refuses a value outside the closed list (SPEC 0)."""
    listed = [word.value for word in words]
    return models.CheckConstraint(condition=models.Q(**{f"{field}__in": listed}), name=name)


class AuthorityManager(models.Manager[M]):
    """Reads and writes at the authority's alias, whatever a replica router would say."""

    def get_queryset(self) -> models.QuerySet[M]:
        return super().get_queryset().using(settings().database)

    def locked(self) -> models.QuerySet[M]:
        """Return a queryset that locks its own rows only, leaving foreign keys to them free."""
        return self.get_queryset().select_for_update(no_key=True, of=("self",))


class Record(models.Model):
    """The base of every table of leaseq."""

    objects: ClassVar[AuthorityManager[Self]] = AuthorityManager()

    class Meta:
        abstract = True
