"""Pages on which nothing can be broken: read only, bounded, without a delete (SPEC H1, H2)."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join

from leaseq.models.fields import MoneyField
from leaseq.queries import wording
from leaseq.rules.money import plain
from leaseq_admin import cells

COUNT_MAX = 10_000
ROWS_PER_PAGE = 100
SUGGESTIONS_MAX = 50
ID_PART_LENGTH_MIN = 6
TEN_YEARS = timedelta(days=3650)
HEX = frozenset("0123456789abcdef-")


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts and pages the first ten thousand rows only, so that no list reads a whole table."""

    @cached_property
    def _seen(self) -> int:
        rows: models.QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows.order_by().values("pk")[: COUNT_MAX + 1].count()

    @cached_property
    def count(self) -> int:
        """How many rows are paged."""
        return min(self._seen, COUNT_MAX)

    @property
    def is_cut(self) -> bool:
        """Whether there are more rows than are paged."""
        return self._seen > COUNT_MAX


class TypedFilter(admin.SimpleListFilter):
    """A filter by an exact name that is typed: no list of names grows with the installation."""

    template = "admin/leaseq/typed_filter.html"
    lookup = ""
    suggested: type[models.Model] | None = None

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        if self.suggested is None:
            return [("", "")]
        rows = self.suggested._default_manager.order_by("name")
        names = rows.values_list("name", flat=True)[:SUGGESTIONS_MAX]
        return [(name, name) for name in names] or [("", "")]

    def queryset(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> models.QuerySet[Any]:
        # PostgreSQL keeps no NUL in a text, so none of its rows has one.
        wanted = (self.value() or "").replace("\0", "").strip()
        return queryset.filter(**{self.lookup: wanted}) if wanted else queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        kept = changelist.get_filters_params()
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "suggestions": [name for name, _ in self.lookup_choices if name],
            "clear": changelist.get_query_string(remove=[self.parameter_name or "", PAGE_VAR]),
            "kept": [
                (name, value)
                for name, values in kept.items()
                if name != self.parameter_name
                for value in values
            ]
            + ([(SEARCH_VAR, changelist.query)] if changelist.query else []),
        }


class LightList(ChangeList):
    """A list that leaves the long fields of its rows, which it does not show, in the database."""

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: Any = None
    ) -> models.QuerySet[Any]:
        rows: models.QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        assert isinstance(self.model_admin, Page)
        return rows.defer(*self.model_admin.unlisted)


class Page(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list and a page per row that can only be read.

    Fields of the model are named as texts; how each is shown follows from its type. `lists` are
    the lists that a row's page leads to: label, model and the foreign key that names the row.
    """

    list_per_page = ROWS_PER_PAGE
    list_max_show_all = ROWS_PER_PAGE
    list_select_related: ClassVar[tuple[str, ...]] = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-pk",)
    paginator = BoundedPaginator
    empty_value_display = wording.NOTHING
    view_on_site = False

    currency_path = "currency"
    colours_booleans = False  # a red cross would say that it is bad to be no dead letter
    unlisted: Sequence[str] = ()
    searched_ids: Sequence[str] = ()
    searched_texts: Sequence[str] = ()
    lists: Sequence[tuple[str, type[models.Model], str]] = ()

    class Media:
        css = {"all": ["leaseq_admin/pages.css"]}

    def __init__(self, model: type[models.Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        fields = self.opts.concrete_fields
        self._listed = {one.name: self._cell(one, in_list=True) for one in fields}
        self._shown = {one.name: self._cell(one, in_list=False) for one in fields}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LightList

    def get_list_display(self, request: HttpRequest) -> Any:
        return [self._listed.get(str(name), name) for name in self.list_display]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Give the fieldsets, with a cell in place of each field that cannot be edited."""
        edited = set(self.edited_fields(request, obj))

        def shown(fields: Any) -> list[Any]:
            # A row inside is a line of fields that stand side by side.
            of = [
                shown(one)
                if isinstance(one, tuple)
                else (one if one in edited else self._shown.get(one, one))
                for one in fields
                if obj is not None or isinstance(one, tuple) or one in edited
            ]
            return [one for one in of if one != []]

        sets = [
            (heading, {**options, "fields": shown(options["fields"])})
            for heading, options in self.fieldsets or ()
        ]
        return [(heading, options) for heading, options in sets if options["fields"]]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        edited = set(self.edited_fields(request, obj))
        fields = flatten_fieldsets(self.get_fieldsets(request, obj))
        return [one for one in fields if one not in edited]

    def edited_fields(self, request: HttpRequest, obj: Any) -> Sequence[str]:
        """Return the fields that this person may edit of a row, or of a new one for None."""
        return ()

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[Any], search_term: str
    ) -> tuple[models.QuerySet[Any], bool]:
        """Find rows by a whole id, by the end or beginning of their own, or by an exact key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        matches = models.Q(pk__in=[])
        for name in self.searched_texts:
            matches |= models.Q(**{name: term})
        whole = _as_id(term)
        for name in self.searched_ids:
            field = self.opts.get_field(name)
            if isinstance(field, models.BigAutoField):
                if term.isdecimal():
                    matches |= models.Q(**{name: term})
            elif whole is not None:
                matches |= models.Q(**{name: whole})
            elif name == "id" and (part := _as_part_of_id(term)):
                queryset = queryset.alias(id_text=Cast("id", models.CharField()))
                matches |= models.Q(id_text__endswith=part) | models.Q(id_text__startswith=part)
        return queryset.filter(matches), False

    @admin.display(description="see also")
    def links(self, obj: models.Model) -> str:
        """Lead to the lists of what belongs to this row."""
        links = [
            (cells.list_of(model, **{field: obj.pk}), label) for label, model, field in self.lists
        ]
        return format_html_join(" · ", '<a href="{}">{}</a>', links)

    def _cell(self, field: Any, *, in_list: bool) -> Any:
        """Return how this field is shown: its own name where Django shows it well."""
        show = self._show(field, in_list=in_list)
        if show is None:
            return field.name

        def cell(obj: models.Model) -> str:
            return show(obj)

        cell.__name__ = field.name
        heading = field.verbose_name.removesuffix(" at") if in_list else field.verbose_name
        return admin.display(description=heading)(cell)

    def _show(self, field: Any, *, in_list: bool) -> Callable[[Any], str] | None:
        match field:
            case models.ForeignKey():
                return partial(_related, field=field, in_list=in_list)
            case models.UUIDField() if in_list:
                return lambda obj: cells.identity(getattr(obj, field.name))
            case models.DateTimeField():
                return lambda obj: cells.instant(getattr(obj, field.name))
            case models.DurationField():
                return partial(_duration, field=field)
            case MoneyField():
                return partial(_money, field=field, currency_path=self.currency_path)
            case models.DecimalField():
                return lambda obj: wording.number(getattr(obj, field.name))
            case models.BooleanField() if not self.colours_booleans:
                return lambda obj: "yes" if getattr(obj, field.name) else "no"
            case models.JSONField():
                return lambda obj: cells.document(getattr(obj, field.name))
            case _:
                return None


class ConfigurationPage(Page):
    """A page of what operators set up: added and changed with every check, never deleted.

    Only the fields that were changed are written, so that a form which stood open for an hour
    does not put back what the services have written since.
    """

    colours_booleans = True
    edited: Sequence[str] = ()
    fixed: Sequence[str] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return admin.ModelAdmin.has_add_permission(self, request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_change_permission(self, request, obj)

    def edited_fields(self, request: HttpRequest, obj: Any) -> Sequence[str]:
        if obj is None:
            return (*self.fixed, *self.edited)
        return self.edited if self.has_change_permission(request, obj) else ()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show or save the form in one transaction of the authority, which a form may lock in."""
        with transaction.atomic(using=self.get_queryset(request).db):
            response: HttpResponse = super().changeform_view(
                request, object_id, form_url, extra_context
            )
            return response

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if isinstance(db_field, MoneyField):
            kwargs |= {"form_class": MoneyInput, "min_value": 0}
        elif isinstance(db_field, models.DurationField):
            kwargs["validators"] = [
                MinValueValidator(timedelta(0), "A duration is not negative."),
                MaxValueValidator(TEN_YEARS, "A duration is at most 3650 days."),
            ]
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: models.Model, form: Any, change: Any) -> None:
        using = self.get_queryset(request).db
        if change:
            obj.save(using=using, update_fields=form.changed_data)
        else:
            obj.save(using=using, force_insert=True)


class MoneyInput(forms.DecimalField):
    """A field of a form for exact money, without zeros that say nothing."""

    def prepare_value(self, value: Any) -> Any:
        """Return what stands in the field before anything is typed."""
        return plain(value) if hasattr(value, "normalize") else value


def _as_id(term: str) -> UUID | None:
    try:
        return UUID(term)
    except ValueError:
        return None


def _as_part_of_id(term: str) -> str | None:
    part = term.lower().lstrip("…")
    return part if len(part) >= ID_PART_LENGTH_MIN and HEX.issuperset(part) else None


def _related(obj: models.Model, *, field: Any, in_list: bool) -> str:
    key = getattr(obj, field.attname)
    if key is None:
        return wording.NOTHING
    model = field.related_model
    if in_list and model in cells.LONG_NAMED:
        return cells.row_link(model, key, wording.tail(key))
    return cells.row_link(model, key, str(getattr(obj, field.name)))


def _duration(obj: models.Model, *, field: Any) -> str:
    length = getattr(obj, field.name)
    return wording.NOTHING if length is None else wording.span(length)


def _money(obj: models.Model, *, field: Any, currency_path: str) -> str:
    currency: Any = obj
    for name in currency_path.split("."):
        currency = getattr(currency, name, "")
    return cells.money(getattr(obj, field.name), str(currency))
