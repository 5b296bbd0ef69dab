"""Printed lists: JSON and CSV as a contract, tables that hide nothing. No stack."""

from __future__ import annotations

import csv
import json
import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import output
from cli.output import Format, Row, print_rows
from metering.digits import plain
from metering.instants import rfc3339

COLUMNS = ("account", "window_start", "quantity", "amount", "events")
ROW: Row = {
    "account": "a1",
    "window_start": datetime(2026, 3, 1, 13, 5, tzinfo=timezone(timedelta(hours=2))),
    "quantity": Decimal(1200),
    "amount": Decimal("0.000000300000"),
    "events": 7,
}


def printed(rows: list[Row], form: Format, columns: tuple[str, ...] = COLUMNS, limit: int | None = None) -> str:
    out = StringIO()
    print_rows(rows, columns, form, limit, out)
    return out.getvalue()


def test_json_is_a_list_of_objects_with_text_decimals_and_utc_instants() -> None:
    assert (
        json.loads(printed([ROW, ROW], Format.JSON))
        == [
            {
                "account": "a1",
                "window_start": "2026-03-01T11:05:00Z",
                "quantity": "1200",
                "amount": "0.0000003",
                "events": 7,
            }
        ]
        * 2
    )


def test_an_empty_list_is_a_list_and_an_empty_csv_has_its_header() -> None:
    assert json.loads(printed([], Format.JSON)) == []
    assert printed([], Format.CSV) == "account,window_start,quantity,amount,events\n"
    assert "account" in printed([], Format.TABLE)


def test_csv_and_json_have_the_same_values() -> None:
    (row,) = csv.DictReader(StringIO(printed([ROW], Format.CSV)))
    assert row == {name: str(value) for name, value in json.loads(printed([ROW], Format.JSON))[0].items()}


def test_an_object_is_nested_in_json_and_text_elsewhere() -> None:
    rows: list[Row] = [{"rules": {"grace_seconds": 900}}]
    assert json.loads(printed(rows, Format.JSON, ("rules",))) == rows
    assert '{"grace_seconds": 900}' in printed(rows, Format.TABLE, ("rules",))
    assert printed(rows, Format.CSV, ("rules",)) == 'rules\n"{""grace_seconds"": 900}"\n'


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**25), max_value=10**25))
def test_a_decimal_keeps_its_value_in_plain_notation(value: Decimal) -> None:
    assert Decimal(plain(value)) == value
    assert set(plain(value)) <= set("-.0123456789")


@pytest.mark.parametrize(
    ("value", "text"), [("1E+3", "1000"), ("1E-12", "0.000000000001"), ("-0.00", "0"), ("100", "100"), ("2.50", "2.5")]
)
def test_no_exponent_and_no_trailing_zeros(value: str, text: str) -> None:
    assert plain(Decimal(value)) == text


def test_an_instant_has_a_zone_and_its_fraction() -> None:
    assert rfc3339(datetime(2026, 1, 1, 0, 0, 0, 250000, tzinfo=UTC)) == "2026-01-01T00:00:00.250000Z"
    with pytest.raises(ValueError, match="no time zone"):
        rfc3339(datetime(2026, 1, 1))  # noqa: DTZ001 - the zone is what is missing


def test_a_table_cuts_no_money_and_obeys_no_stranger() -> None:
    amount = Decimal("12345678901234567890.123456789012")
    table = printed([{**ROW, "account": "[red]\x1b[31m\nx" * 30, "amount": amount}], Format.TABLE)
    assert "12345678901234567890.123456789012" in table
    assert "[red]\\x1b[31m\\nx" in table
    assert "\x1b" not in table


def test_small_floats_have_no_exponent_in_csv() -> None:
    assert printed([{"late_seconds": 1e-06}], Format.CSV, ("late_seconds",)) == "late_seconds\n0.000001\n"


def test_a_truncated_list_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(printed([ROW] * 3, Format.JSON, limit=3))) == 3
    assert capsys.readouterr().err == ""
    assert len(json.loads(printed([ROW] * 4, Format.JSON, limit=3))) == 3
    assert "Cut after 3 rows" in capsys.readouterr().err


@given(st.lists(st.lists(st.text(max_size=8), min_size=2, max_size=2), min_size=1, max_size=5), st.booleans())
def test_differential_a_long_table_is_drawn_as_a_short_one(texts: list[list[str]], is_number: bool) -> None:
    shown = [[output.printable(text) for text in row] for row in texts]
    drawn = StringIO()
    output._draw_table(("first", "second"), shown, [is_number, False], drawn)
    assert "".join(output._table_lines(("first", "second"), shown, [is_number, False])) == drawn.getvalue()


def test_a_table_of_thousands_of_rows_is_cheap() -> None:
    rows: list[Row] = [{**ROW, "account": f"account-{number}"} for number in range(4_087)]
    before = time.thread_time()
    lines = printed(rows, Format.TABLE).splitlines()
    assert time.thread_time() - before < 1, "Rich took 7.6 s for the columns of stragglers"
    assert len(lines) == 4_087 + 4


def test_a_long_table_is_paged_on_a_terminal_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    pages: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", pages.extend)
    screen = Terminal()
    print_rows([ROW] * output.MAX_DRAWN_ROWS, COLUMNS, Format.TABLE, out=screen)
    assert screen.getvalue().count("a1") == output.MAX_DRAWN_ROWS
    assert pages == []
    print_rows([ROW] * (output.MAX_DRAWN_ROWS + 1), COLUMNS, Format.TABLE, out=Terminal())
    assert sum("a1" in line for line in pages) == output.MAX_DRAWN_ROWS + 1
