"""Days are compared by the combinations of dimensions that have rows of their own; others where there is no room."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import polars as pl
import pytest

from jobs.audit import calendar
from jobs.audit.bills import DAYS, NOT_PLACED
from jobs.audit.calendar import STORED_DAYS, unequal_days
from jobs.audit.unequal import Wrong

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SAID = {"account": "a", "day": date(2026, 3, 1), "meter": "tokens", "quantity": 5, "usage_rows": 1}
SAID |= {"first_window": NOON, "last_window_end": NOON, "corrected": False, "is_put_right": False, "is_other": False}


def days(schema: pl.Schema, *rows: dict[str, Any]) -> pl.DataFrame:
    made = [{name: {**SAID, **row}.get(name) for name in schema} for row in rows]
    return pl.DataFrame(made, schema_overrides={"quantity": pl.Int64()}, infer_schema_length=None).cast(schema)


def compared(made: list[dict[str, Any]], stored: list[dict[str, Any]]) -> Wrong:
    return unequal_days(days(DAYS, *made), days(STORED_DAYS, *stored), is_everything=True)


MADE: list[dict[str, Any]] = [{"dimensions": name} for name in ("x", "y", "z")]
TOGETHER: list[dict[str, Any]] = [{"dimensions": "x"}, {"quantity": 10, "usage_rows": 2, "is_other": True}]


def test_each_combination_is_a_row() -> None:
    assert compared(MADE, MADE).found == 0


def test_what_has_no_room_is_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar, "MOST_COMBINATIONS", 1)
    assert compared(MADE, TOGETHER).found == 0


def test_what_has_room_is_not_together() -> None:
    assert "all have room" in compared(MADE, TOGETHER).first


def test_of_an_account_with_usage_of_no_day_the_sum_of_all_days_is_told() -> None:
    made = [{"day": NOT_PLACED}, {}]
    assert compared(made, [{"quantity": 10, "usage_rows": 0}]).found == 0
    assert compared(made, [{"quantity": 11, "usage_rows": 0}]).found == 1
