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

from leaseq.queries.wording import NOTHING, SECOND, span
from leaseq.rules import money as money_rules


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
    return NOTHING if amount is None else money_rules.plain(amount)


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
