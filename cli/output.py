"""Printing lists: the same rows as a table for people, and as JSON and CSV for programs.

JSON is a contract: a list of objects with snake_case keys, instants as RFC 3339 in UTC, decimals as strings in plain
notation (a binary float would change the last digit of a bill).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, TextIO

import typer

from metering.csv_lines import json_text, text_of, write_csv
from metering.price_models import model_words

Value = str | int | float | bool | Decimal | datetime | Mapping[str, Any] | list[int] | None
Row = Mapping[str, Value]

_UNBOUNDED_WIDTH = 100_000
_GAP = "   "
_MODEL = "model"
MAX_DRAWN_ROWS = 200
"""A longer table is not fitted to the terminal, but paged there."""


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
            _print_table(map(_with_words, kept) if _MODEL in columns else kept, columns, out)


def _with_words(row: Row) -> Row:
    """With the model of a price as people write it."""
    model = row[_MODEL]
    return {**row, _MODEL: model_words(model)} if isinstance(model, str) else row


def print_document(document: Mapping[str, Any], out: TextIO | None = None) -> None:
    """Print one object as JSON, with objects and lists in it: each value as in a list. Dates are YYYY-MM-DD."""
    (out or sys.stdout).write(json.dumps(document, default=json_text, indent=2) + "\n")


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
    listed = list(rows)
    is_number = [any(isinstance(row[name], int | float | Decimal) for row in listed) for name in columns]
    texts = [[printable(text_of(row[name])) for name in columns] for row in listed]
    if len(texts) <= MAX_DRAWN_ROWS:
        _draw_table(columns, texts, is_number, out)
    elif out.isatty():
        import click

        # Short lines are not wrapped, long ones scroll, and what was read stays on the screen.
        os.environ.setdefault("LESS", "-RSX")
        click.echo_via_pager(_table_lines(columns, texts, is_number))
    else:
        out.writelines(_table_lines(columns, texts, is_number))


def _draw_table(columns: Sequence[str], texts: list[list[str]], is_number: list[bool], out: TextIO) -> None:
    # Rich takes 0.2 s to import; programs that ask for JSON do not pay for it.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, number in zip(columns, is_number, strict=True):
        # Folding keeps every digit; Rich's default would cut an amount short with an ellipsis.
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    console = Console(file=out, width=None if out.isatty() else _UNBOUNDED_WIDTH)
    console.print(table)
    if not texts:
        console.print("Nothing to list.")


def _table_lines(columns: Sequence[str], texts: list[list[str]], is_number: list[bool]) -> Iterator[str]:
    """The lines that `_draw_table` gives without a limit of width: Rich takes a millisecond for each row."""
    from rich.cells import cell_len

    def width(text: str) -> int:
        return len(text) if text.isascii() else cell_len(text)

    widths = [max(map(width, column)) for column in zip(columns, *texts, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = []
        for text, wide, number in zip(row, widths, is_number, strict=True):
            shown = text.rstrip() if number else text
            blank = " " * (wide - width(shown))
            cells.append(blank + shown if number else shown + blank)
        return f" {_GAP.join(cells)} \n"

    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    yield " " * (total + 2) + "\n"
    yield line(columns)
    yield f" {'─' * total} \n"
    yield from map(line, texts)
    yield " " * (total + 2) + "\n"


def _json_value(value: Value) -> str | int | float | bool | Mapping[str, Any] | list[int] | None:
    if isinstance(value, Decimal | datetime):
        return text_of(value)
    return value


def printable(text: str) -> str:
    """Control characters escaped: what a stranger sent must not steer the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
