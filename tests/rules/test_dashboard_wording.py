"""How numbers and money read. No Streamlit, no database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dashboard.exact import plain, total_quantity
from dashboard.meter_columns import with_meters
from dashboard.table import Row, Sparkline, shown_columns, to_csv
from dashboard.wording import count, length, literal, money, rounded

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0.00 EUR"),
        ("1234.5", "1,234.50 EUR"),
        ("0.000000000012", "0.000000000012 EUR"),
        ("-1234567.100000000000", "-1,234,567.10 EUR"),
        ("12345678901234567890.000000000001", "12,345,678,901,234,567,890.000000000001 EUR"),
    ],
)
def test_money_keeps_every_digit(amount: str, text: str) -> None:
    assert money(Decimal(amount), "EUR") == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0.00"),
        ("2.5", "2.50"),
        ("2.505", "≈ 2.50"),
        ("0.0042", "0.0042"),
        ("0.00425", "≈ 0.0042"),
        ("-7", "-7.00"),
    ],
)
def test_a_rounded_headline_is_marked(amount: str, text: str) -> None:
    assert rounded(Decimal(amount)) == text


def test_a_name_from_outside_makes_no_markdown() -> None:
    assert literal("[a](http://x)\n# ok_name-1") == r"\[a\]\(http\://x\) \# ok_name-1"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3_660, "1 h 01 min"), (90_000, "25 h 00 min")]
)
def test_a_length_has_two_units(seconds: int, text: str) -> None:
    assert length(timedelta(seconds=seconds)) == text


def test_amounts_of_a_column_have_the_same_places_and_lose_none() -> None:
    rows: list[Row] = [{"amount": Decimal("1.5")}, {"amount": Decimal("1000.00025")}, {"amount": None}]
    assert shown_columns(rows) == {"amount": ["1.50000", "1,000.00025", None]}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1234.500000", "1,234.5"),
        ("7.000000", "7"),
        ("1E+3", "1,000"),
        ("0.000001", "0.000001"),
        ("-0.5", "-0.5"),
        ("1000000000000000000000000000000000000.000001", "1,000,000,000,000,000,000,000,000,000,000,000,000.000001"),
    ],
)
def test_a_quantity_is_shown_plain_and_whole_ones_are_int(number: str, text: str) -> None:
    quantity = plain(Decimal(number))
    assert count(quantity) == text
    assert isinstance(quantity, int) == ("." not in text)


def test_quantities_add_up_to_the_last_digit() -> None:
    assert total_quantity([plain(Decimal("0.000001")), 10**40, plain(Decimal("0.999999"))]) == 10**40 + 1


def test_a_column_with_fractions_has_each_quantity_as_it_is() -> None:
    rows: list[Row] = [{"quantity": plain(Decimal(text))} for text in ("1234.500000", "12345", "0.25")]
    assert shown_columns([*rows, {"quantity": None}]) == {"quantity": ["1,234.5", "12,345", "0.25", None]}
    assert to_csv(rows) == "quantity\n1234.5\n12345\n0.25\n"


def test_a_meter_takes_the_place_of_no_other_column() -> None:
    row = with_meters({"state": "open"}, {"late_rows": 1, "state": 2, "gpu_seconds": 3}, {"late rows": 4})
    assert row == {"state": "open", "late rows (meter)": 1, "state (meter)": 2, "gpu seconds": 3, "late rows": 4}


def test_csv_is_exact_and_runs_nothing() -> None:
    row: Row = {
        "window start (UTC)": NOON,
        "account": "=cmd()",
        "amount": Decimal("1234.500000000001"),
        "late": timedelta(0, 2),
    }
    assert to_csv([row]) == ("window_start_utc,account,amount,late\n2026-03-01T12:00:00Z,'=cmd(),1234.500000000001,2\n")


def test_a_sparkline_is_drawn_and_not_in_the_csv() -> None:
    rows: list[Row] = [{"account": "a", "shape": None}, {"account": "b", "shape": Sparkline((0.0, 2.5))}]
    assert shown_columns(rows) == {"account": ["a", "b"], "shape": [None, [0.0, 2.5]]}
    assert to_csv(rows) == "account\na\nb\n"
