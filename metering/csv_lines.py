"""Lists as CSV, for programs and for spreadsheets: RFC 4180 with a header, lines end with a line feed.

Texts come from outside, and a spreadsheet evaluates a cell that begins with one of `FORMULA_STARTS`. A leading quote
makes it a text. Only texts get one, so a negative number stays a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TextIO

from metering.digits import plain
from metering.instants import rfc3339

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_QUOTED = frozenset(',"\r\n')


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Write the header `columns`, then `rows` as they come, each with a value for every column.

    Raises ValueError for a datetime without a zone.
    """
    out.write(csv_line(columns))
    out.writelines(map(csv_line, rows))


def json_text(value: object) -> str:
    """What JSON has no form for, as the text that it is in JSON: decimals, instants, dates. Raises TypeError."""
    if isinstance(value, Decimal | datetime):
        return text_of(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} has no form in JSON")


def text_of(value: Any) -> str:
    """A value as text: decimals with all digits, instants in UTC, durations in seconds, objects and lists as JSON.

    Empty for None. Raises ValueError for a datetime without a zone.
    """
    match value:
        case None:
            return ""
        case Decimal():
            return plain(value)
        case float() | timedelta():
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            return plain(Decimal(repr(seconds)))
        case datetime():
            return rfc3339(value)
        case Mapping() | list():
            return json.dumps(value)
    return str(value)


def csv_line(values: Sequence[Any]) -> str:
    """One line, with its end. Raises ValueError for a datetime without a zone."""
    cells = [_cell(value) for value in values]
    # An empty line would be no row.
    return (",".join(cells) if cells != [""] else '""') + "\n"


def _cell(value: Any) -> str:
    text = text_of(value)
    if isinstance(value, str):
        # Readers of CSV stop at a NUL, or refuse the file.
        text = text.replace("\0", "\\x00")
        text = f"'{text}" if text.startswith(FORMULA_STARTS) else text
    if _QUOTED.isdisjoint(text):
        return text
    escaped = text.replace('"', '""')
    return f'"{escaped}"'
