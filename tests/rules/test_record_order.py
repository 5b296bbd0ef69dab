"""Rows that are in order already are not sorted, and come in the order that sorting gives."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.record_order import by_columns, by_reception

PLACE = ("topic", "partition", "offset")
SCHEMA = {"topic": pl.String, "partition": pl.Int32, "offset": pl.Int64, "received_at": pl.Int64}
records = st.dictionaries(
    st.tuples(
        st.sampled_from(["b", "a", "a topic of a long name", "a topic of a long name 2"]),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    st.integers(0, 3),
    max_size=12,
)


@given(found=records, is_sorted=st.booleans())
def test_rows_come_in_the_order_of_receipt_and_place(found: dict[tuple[str, int, int], int], is_sorted: bool) -> None:
    places = sorted(found) if is_sorted else [*found]
    rows = pl.DataFrame([(*place, found[place]) for place in places], schema=SCHEMA, orient="row")
    assert by_reception(rows, PLACE).equals(rows.sort("received_at", *PLACE))
    assert by_columns(rows, PLACE).equals(rows.sort(*PLACE))


def test_rows_in_order_are_given_back_as_they_are() -> None:
    rows = pl.DataFrame([("a", 0, 1, 5), ("a", 0, 2, 4), ("a", 1, 0, 4), ("b", 0, 0, 4)], schema=SCHEMA, orient="row")
    assert by_columns(rows, PLACE) is rows
    assert by_columns(rows.clear(), PLACE).is_empty()
    assert by_columns(rows[::-1], PLACE) is not rows
