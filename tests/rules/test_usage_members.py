"""The column `members` of usage: any text and number is read as it was written, and found by what names it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.usage_members import ENTRY, MEMBERS, members, written, written_members

NUMBERS = st.integers(0, 10**17 - 1).map(lambda units: Decimal(units).scaleb(-6))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', "\\", "\x7f", "\u2028"])
NAMED = st.tuples(TEXTS, st.none()) | st.tuples(st.none(), NUMBERS)
PERIOD = {
    "meter": "users",
    "aggregation": "unique",
    "period": "month",
    "first_day": date(2026, 3, 1),
    "starts_at": datetime(2026, 3, 1, tzinfo=UTC),
    "ends_at": datetime(2026, 4, 1, tzinfo=UTC),
    "currency": "EUR",
    "price_version": 7,
    "unit_price": Decimal("0.25"),
}


@settings(deadline=None, max_examples=200)
@given(st.lists(NAMED, min_size=1, max_size=6))
def test_each_member_is_read_as_written_and_found_by_its_name_alone(
    named: list[tuple[str | None, Decimal | None]],
) -> None:
    rows = [{"row": place, **PERIOD, "member": text, "value": value} for place, (text, value) in enumerate(named)]
    entries = pl.DataFrame(rows, schema={"row": pl.Int64(), **ENTRY})
    column = written(entries)
    assert members(column).select("member", "value").rows() == named
    names = written_members(entries).to_list()
    for (text, value), name in zip(named, names, strict=True):
        found = column.select(pl.col(MEMBERS).str.contains_any([name])).to_series().to_list()
        assert found == [(text, value) == other for other in named]
