"""Rows to a readable table or to JSON; times, money and ids as people read them (SPEC H4)."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

SECOND = timedelta(seconds=1)
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
MONEY_PLACES_SHOWN = 2
ID_TAIL = 12
NOTHING = "–"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare --json, which every reading verb has."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_limit(parser: argparse.ArgumentParser, *, default: int, what: str) -> None:
    """Declare --limit, a whole number above zero."""
    parser.add_argument(
        "--limit",
        type=_above_zero,
        default=default,
        metavar="N",
        help=f"show at most N {what} (default {default})",
    )


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def span(length: timedelta) -> str:
    """Say how long something takes: `24 s`, `3 min`, `2 h 5 min`; never negative."""
    if length < SECOND:
        return "0 s" if length <= timedelta(0) else "< 1 s"
    left = int(length.total_seconds())
    parts = []
    for unit, seconds in UNITS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    # Two units are as exact as anybody reads, and seconds matter only below two minutes.
    shown = (
        parts[:2] if length < timedelta(minutes=2) or length >= timedelta(hours=1) else parts[:1]
    )
    return " ".join(shown)


def ago(at: datetime | None, *, now: datetime) -> str:
    """Say how long ago something was."""
    return NOTHING if at is None else f"{span(now - at)} ago"


def clock_face(length: timedelta) -> str:
    """Write a span as minutes, seconds and milliseconds: `12:00.904`, `1:02:03.004`."""
    minutes, seconds = divmod(length / SECOND, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:06.3f}" if hours else f"{minutes}:{seconds:06.3f}"


def left(at: datetime | None, *, now: datetime) -> str:
    """Say how much time is left, or how long ago it ran out."""
    if at is None:
        return NOTHING
    return span(at - now) if at > now else f"ran out {span(now - at)} ago"


def moment(at: datetime | None) -> str:
    """Write an instant to the second, in UTC."""
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def money(amount: Decimal | None) -> str:
    """Write money exactly, with two places at least and no zeros behind what counts."""
    if amount is None:
        return NOTHING
    whole, _, places = f"{amount:f}".partition(".")
    return f"{whole}.{places.rstrip('0').ljust(MONEY_PLACES_SHOWN, '0')}"


def number(quantity: Decimal) -> str:
    """Write a quantity exactly, without zeros behind the point that say nothing."""
    text = f"{quantity:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tail(key: UUID) -> str:
    """Return the end of an id: its beginning is its time, and alike for neighbours."""
    return str(key)[-ID_TAIL:]


def words(state: str | None) -> str:
    """Write a word of the vocabulary for people."""
    return NOTHING if state is None else str(state).replace("_", " ")


def show_table(
    console: Console,
    title: str,
    *,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str,
) -> None:
    """Print a table, or without rows the sentence that says so.

    A column whose name begins with `>` is of numbers, on the right; it and one that begins with
    `=` are never broken over lines, so that what stands there can be copied.
    """
    console.print(Text(title, style="bold"))
    if not rows:
        console.print(Text(f"  {empty}", style="dim"))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        table.add_column(
            name.lstrip(">="),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=name.startswith((">", "=")),
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print()


def show_json(console: Console, value: Any) -> None:
    """Print JSON: money and ids as text, spans in seconds, instants in ISO 8601."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False)
    console.file.write(text + "\n")


def plain(value: Any) -> Any:
    """Return what JSON can say of a value, exactly."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (Decimal, UUID, StrEnum)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    return value
