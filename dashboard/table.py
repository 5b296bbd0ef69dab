"""A table of values as people read it, and the same values as CSV: exact, and without decoration."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeGuard

import streamlit as st

from dashboard.exact import Measure, Quantity
from dashboard.wording import count, instant, length
from metering.csv_lines import write_csv


class Link(str):
    """An address to open, relative to the page."""

    __slots__ = ()


class Sparkline(tuple[float, ...]):
    """Numbers to be drawn as an area from 0 to the largest of them, which a column beside it should say in digits."""

    __slots__ = ()


Value = str | int | float | Decimal | datetime | timedelta | bool | Sparkline | None
Row = Mapping[str, Value]


MAX_EXACT = 2**53
"""Whole numbers up to here are exact as floats."""
MAX_HEIGHT = 420
ROW_HEIGHT = 30


def show_table(rows: Sequence[Row], key: str, *, height: int = MAX_HEIGHT) -> None:
    """Draw `rows`, which have one set of columns (labels), with a button that downloads them as `<key>.csv`.

    Amounts, quantities with a fraction, and columns with a number past MAX_EXACT are text with all their digits: a
    number would pass through the browser's floats.
    """
    shown = shown_columns(rows)
    st.dataframe(
        shown,
        hide_index=True,
        height=min(height, ROW_HEIGHT * (len(rows) + 1) + 3),
        row_height=ROW_HEIGHT,
        placeholder="–",
        column_config={label: _column(label, [row[label] for row in rows]) for label in shown},
    )
    st.download_button(
        "CSV",
        lambda: to_csv(rows),
        file_name=f"weir-{key}.csv",
        mime="text/csv",
        key=f"csv-{key}",
        on_click="ignore",
        type="tertiary",
        icon=":material/download:",
        help=f"Download these {len(rows):,} rows, all digits, times in UTC.",
    )


def shown_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Label → the texts of its cells. Amounts of one column have the same number of places, so that they align."""
    labels = list(rows[0]) if rows else []
    columns: dict[str, list[Any]] = {}
    for label in labels:
        values = [row[label] for row in rows]
        places = max((_places(value) for value in values if isinstance(value, Decimal)), default=0)
        as_text = _are_exact(values)
        columns[label] = [count(value) if as_text and _is_number(value) else _cell(value, places) for value in values]
    return columns


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as the `weir` commands write them (`metering.csv_lines`); columns are named as programs like it.

    Sparklines are left out: they are drawings.
    """
    text = io.StringIO()
    drawn = {label for row in rows for label, value in row.items() if isinstance(value, Sparkline)}
    labels = [label for label in rows[0] if label not in drawn] if rows else []
    columns = [label.replace(" ", "_").replace("(", "").replace(")", "").lower() for label in labels]
    write_csv(columns, ([row[label] for label in labels] for row in rows), text)
    return text.getvalue()


def _cell(value: Value, places: int) -> Any:
    match value:
        case Decimal():
            return f"{value:,.{places}f}"
        case datetime():
            return instant(value)
        case timedelta():
            return length(value)
        case Sparkline():
            return list(value)
        case _:
            return value


def _is_number(value: Value) -> TypeGuard[Quantity]:
    return isinstance(value, int | Measure)


def _are_exact(values: Sequence[Value]) -> bool:
    """Whether one of the quantities is more than a float would keep."""
    return any(isinstance(value, Measure) or (isinstance(value, int) and abs(value) > MAX_EXACT) for value in values)


def _places(amount: Decimal) -> int:
    """Decimal places that hold a digit, at least the two of most currencies."""
    return max(2, len(f"{amount:f}".partition(".")[2].rstrip("0")))


def _width(values: Sequence[Value]) -> int | None:
    """Pixels for all digits where the first rows have none, by which the browser would choose; else what it chooses."""
    if values[0] is not None:
        return None
    places = max((_places(value) for value in values if isinstance(value, Decimal)), default=0)
    longest = max(len(str(_cell(value, places))) for value in values)
    return 9 * longest + 24


def _column(label: str, values: Sequence[Value]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if _are_exact(values):
        return st.column_config.TextColumn(label, alignment="right")
    if kinds == {Sparkline}:
        return st.column_config.AreaChartColumn(label, width="small", y_min=0)
    if kinds == {Link}:
        return st.column_config.LinkColumn(label, display_text="open", width="small")
    if kinds in ({int}, {float}):
        return st.column_config.NumberColumn(label, format="localized" if kinds == {int} else "%.1f")
    if kinds & {Decimal, timedelta}:
        return st.column_config.TextColumn(label, alignment="right", width=_width(values))
    return st.column_config.TextColumn(label)
