"""The audit's own rules: which row takes back which, and which completion belongs to which request."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.audit.differences import standing
from jobs.audit.examined import USAGE_READ
from jobs.audit.rejoined import rejoined
from jobs.joins.memory import CARRIED
from jobs.streams import USAGE

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Row = dict[str, Any]
KINDS = pl.DataFrame(pa.Table.from_batches([], USAGE)).schema


def usage(*rows: Row) -> pl.DataFrame:
    named = {name: KINDS[name] for name in USAGE_READ}
    return pl.DataFrame([{name: row.get(name) for name in named} for row in rows], schema=named)


def said(lsn: int, quantity: int, sign: int = 1, corrects: list[int] | None = None) -> Row:
    entry = {"meter": "t", "quantity": Decimal(quantity), "price_version": 1, "unit_price": Decimal(1)}
    return {
        "lsn": lsn,
        "sign": sign,
        "cause": "repriced" if corrects else "stream",
        "corrects_lsns": corrects,
        "account": "a",
        "request_id": "r",
        "request_lsn": 1,
        "completion_lsn": 2,
        "outcome": "matched",
        "event_time": NOON,
        "received_at": NOON,
        "currency": "EUR",
        "day": NOON.date(),
        "meters": [{**entry, "amount": Decimal(quantity)}],
    }


def test_what_is_taken_back_as_it_was_stands_no_more() -> None:
    stands, faults = standing(usage(said(1, 10), said(2, 10, -1, [1]), said(3, 10, 1, [1])))
    assert (stands["usage_lsn"].to_list(), len(faults)) == ([3], 0)


@pytest.mark.parametrize(
    "rows",
    [
        [said(1, 10), said(2, 4, -1, [1]), said(3, 10, 1, [1])],
        [said(1, 10), said(2, 10, -1, [1]), said(3, 10, -1, [1])],
        [said(1, 10), said(2, 10, -1, [7])],
        [said(1, 10), said(2, 10, -1, [1, 1])],
        [said(1, 10), {**said(2, 10, -1), "cause": "repriced"}],
        [said(1, 10), said(3, 10, 1, [1])],
    ],
    ids=["another quantity", "twice", "nobody", "two", "no name", "replaced and never taken back"],
)
def test_a_row_that_takes_back_otherwise_is_a_fault(rows: list[Row]) -> None:
    _, faults = standing(usage(*rows))
    assert set(faults["kind"]) == {"reversal"}
    assert set(faults["usage_lsn"]) <= {row["lsn"] for row in rows[1:]}


NEXT_MONTH = NOON.date() + timedelta(days=31)


def pair(lsn: int, day: date) -> list[Row]:
    """A request that was given up on the day before, its completion, and both together."""
    alone = {"outcome": "abandoned", "completion_lsn": None, "day": NOON.date() - timedelta(days=1)}
    other = {"outcome": "orphaned", "request_lsn": None}
    first, second = said(1, 1) | alone, said(2, 10) | other
    taken = [said(3, 1, -1, [1]) | alone, said(4, 10, -1, [2]) | other]
    return [first, second, *taken, said(lsn, 10, 1, [1, 2]) | {"day": day}]


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        ([said(1, 10), said(2, 10, -1, [1]), said(3, 10, 1, [1]) | {"day": NEXT_MONTH}], [3]),
        (pair(5, NOON.date()), []),
        (pair(5, NOON.date() - timedelta(days=1)), [5]),
        ([said(1, 10) | {"day": None}, said(2, 10, -1, [1]) | {"day": None}, said(3, 10, 1, [1])], []),
        (
            [
                *(said(1, 10), said(2, 10, -1, [1]), said(3, 10, 1, [1]) | {"day": NEXT_MONTH}),
                *(said(4, 10, -1, [3]) | {"day": NEXT_MONTH}, said(5, 10, 1, [3]) | {"day": NEXT_MONTH}),
            ],
            [3],
        ),
    ],
    ids=["over the month's end", "of the completion", "of the request", "of an earlier release", "and what names it"],
)
def test_what_stands_in_the_place_of_others_is_on_their_day(rows: list[Row], moved: list[int]) -> None:
    _, faults = standing(usage(*rows))
    assert faults.select("usage_lsn", "column", "kind").rows() == [(lsn, "day", "otherwise") for lsn in moved]


OUTCOMES = ("abandoned", "orphaned", "matched", "superseded")


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(OUTCOMES), st.sampled_from([0, 0, 1, 20])), max_size=12),
    st.sampled_from([0, 1, 20, 40, 60]),
)
def test_a_completion_belongs_to_the_first_request_before_it_that_waits_within_the_limit(
    drawn: list[tuple[str, int]], within_s: int
) -> None:
    at = NOON
    rows: list[Row] = []
    outcomes: list[Row] = []
    for number, (outcome, after_s) in enumerate(drawn):
        at, lsn = at + timedelta(seconds=after_s), number + 1
        family = {"abandoned": "request", "orphaned": "completion"}.get(outcome, "both")
        rows.append(
            {"lsn": lsn, "family": family, "account": "a", "request_id": "r", "received_at": at, "timeout_us": 1}
        )
        request = lsn if outcome != "orphaned" else None
        completion = lsn if outcome in ("orphaned", "matched") else None
        outcomes.append(
            {"account": "a", "request_id": "r", "outcome": outcome, "request_lsn": request}
            | {"completion_lsn": completion, "received_at": at}
        )
    frame = pl.DataFrame(rows, schema_overrides=CARRIED) if rows else pl.DataFrame(schema=CARRIED)
    carried = frame.with_columns(pl.lit(None, kind).alias(name) for name, kind in CARRIED.items() if name not in frame)
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        "account": pl.String,
        "request_id": pl.String,
        "outcome": pl.String,
        "request_lsn": pl.Int64,
    }
    kinds |= {"completion_lsn": pl.Int64, "received_at": pl.Datetime("us", "UTC")}
    found = rejoined(pl.DataFrame(outcomes, schema=kinds), carried.select(*CARRIED), within_s * 1_000_000, ())
    received: dict[int, datetime] = {row["lsn"]: row["received_at"] for row in rows}
    waiting: list[int] = []
    wanted = []
    for lsn, (outcome, _) in enumerate(drawn, 1):
        if outcome == "matched":
            waiting = []
        if outcome == "abandoned":
            waiting.append(lsn)
        if outcome == "orphaned":
            waiting = [one for one in waiting if received[lsn] - received[one] <= timedelta(seconds=within_s)]
            wanted += [(waiting.pop(0), lsn)] if waiting else []
    pairs = found.filter((pl.col("outcome") == "matched") & (pl.col("request_lsn") != pl.col("completion_lsn")))
    assert sorted(pairs.select("request_lsn", "completion_lsn").iter_rows()) == sorted(wanted)
    assert len(found) == len(drawn) - len(wanted)
    consumed = {lsn for pair in wanted for lsn in pair}
    alone = found.filter(pl.col("outcome").is_in(["abandoned", "orphaned"]))
    assert consumed.isdisjoint(alone.select(pl.coalesce("request_lsn", "completion_lsn")).to_series().to_list())
