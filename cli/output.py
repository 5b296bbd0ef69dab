"""Printing lists: the same rows as a table for people, and as JSON and CSV for programs.

JSON is a contract: a list of objects with snake_case keys, instants as RFC 3339 in UTC, decimals as strings in plain
notation (a binary float would change the last digit of a bill).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, TextIO

import typer

from metering.csv_lines import text_of, write_csv

Value = str | int | float | bool | Decimal | datetime | Mapping[str, Any] | list[int] | None
Row = Mapping[str, Value]

_UNBOUNDED_WIDTH = 100_000


class Format(StrEnum):
    """What a list is printed as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="What to print: a table, JSON, or CSV.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Print at most this many rows, and say if there are more.")
]


def print_rows(
    rows: Iterable[Row],
    columns: Sequence[str],
    form: Format,
    limit: int | None = None,
    out: TextIO | None = None,
    *,
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print `rows`, each with exactly the keys `columns`. JSON and CSV are written as the rows come.

    A list cut by `limit` says so on standard error. `earlier`: the names that columns had until this release, which
    JSON and CSV have, too, until the next. Raises KeyError for a row without one of the columns, ValueError for a
    datetime without a zone.
    """
    out = out or sys.stdout
    kept = _cut(rows, limit)
    if earlier and form is not Format.TABLE:
        kept = ({**row, **{before: row[name] for name, before in earlier.items()}} for row in kept)
        columns = (*columns, *earlier.values())
    match form:
        case Format.JSON:
            _print_json(kept, columns, out)
        case Format.CSV:
            write_csv(columns, ([row[name] for name in columns] for row in kept), out)
        case Format.TABLE:
            _print_table(kept, columns, out)


def print_document(document: Mapping[str, Any], out: TextIO | None = None) -> None:
    """Print one object as JSON, with objects and lists in it: each value as in a list. Dates are YYYY-MM-DD."""
    (out or sys.stdout).write(json.dumps(document, default=_document_value, indent=2) + "\n")


def _cut(rows: Iterable[Row], limit: int | None) -> Iterable[Row]:
    for count, row in enumerate(rows):
        if limit is not None and count == limit:
            typer.echo(f"Cut after {limit} rows; there are more. Raise --limit, or leave it out for all.", err=True)
            return
        yield row


def _print_json(rows: Iterable[Row], columns: Sequence[str], out: TextIO) -> None:
    separator = "[\n"
    for row in rows:
        out.write(f"{separator}  {json.dumps({name: _json_value(row[name]) for name in columns})}")
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _print_table(rows: Iterable[Row], columns: Sequence[str], out: TextIO) -> None:
    # Rich takes 0.2 s to import; programs that ask for JSON do not pay for it.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        is_number = any(isinstance(row[name], int | float | Decimal) for row in listed)
        # Folding keeps every digit; Rich's default would cut an amount short with an ellipsis.
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(printable(text_of(row[name]))) for name in columns))
    console = Console(file=out, width=None if out.isatty() else _UNBOUNDED_WIDTH)
    console.print(table)
    if not listed:
        console.print("Nothing to list.")


def _json_value(value: Value) -> str | int | float | bool | Mapping[str, Any] | list[int] | None:
    if isinstance(value, Decimal | datetime):
        return text_of(value)
    return value


def _document_value(value: object) -> str:
    if isinstance(value, Decimal | datetime):
        return text_of(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} has no form in JSON")


def printable(text: str) -> str:
    """Control characters escaped: what a stranger sent must not steer the reader's terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
