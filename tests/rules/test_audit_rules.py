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

from jobs.audit.compare.differences import standing
from jobs.audit.recompute.examination import USAGE_READ
from jobs.audit.recompute.rejoins import rejoin_outcomes
from jobs.joins.memory import CARRIED
from jobs.streams import USAGE
from tests.simulation.oracle_of_pairs import Event, answered

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


def test_a_row_that_is_taken_back_is_not_effective() -> None:
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
def test_a_negation_that_differs_from_its_row_is_a_fault(rows: list[Row]) -> None:
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
def test_a_replacing_row_has_the_day_of_the_replaced_ones(rows: list[Row], moved: list[int]) -> None:
    _, faults = standing(usage(*rows))
    assert faults.select("usage_lsn", "column", "kind").rows() == [(lsn, "day", "otherwise") for lsn in moved]


OUTCOMES = ("abandoned", "orphaned", "matched", "superseded")


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            *(st.sampled_from(OUTCOMES), st.sampled_from([0, 0, 1, 20]), st.sampled_from([None, None, 0, 5, 70])),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
    st.sampled_from([0, 1, 20, 40, 60]),
)
def test_differential_abandoned_requests_are_rejoined_by_rule_and_first_receipt(
    drawn: list[tuple[str, int, int | None, int]], within_s: int
) -> None:
    at = NOON
    rows: list[Row] = []
    outcomes: list[Row] = []
    events: list[Event] = []
    for lsn, (outcome, after_s, ago_s, occurred_s) in enumerate(drawn, 1):
        at += timedelta(seconds=after_s)
        first = None if ago_s is None else at - timedelta(seconds=ago_s)
        family = {"abandoned": "request", "orphaned": "completion"}.get(outcome, "both")
        received = {"received_at": at, "first_received_at": first}
        name = bytes([100 - lsn])
        of_row = {"event_time": NOON + timedelta(seconds=occurred_s), "timeout_us": 1, "identity": name, **received}
        rows.append({"lsn": lsn, "family": family, "account": "a", "request_id": "r"} | of_row)
        request = lsn if outcome != "orphaned" else None
        completion = lsn if outcome in ("orphaned", "matched") else None
        outcomes.append(
            {"account": "a", "request_id": "r", "outcome": outcome, "request_lsn": request}
            | {"completion_lsn": completion, **received}
        )
        if outcome != "superseded":
            since_s = round(((first or at) - NOON).total_seconds())
            came = round((at - NOON).total_seconds()), occurred_s, name
            events.append(Event(lsn, outcome == "abandoned", since_s, outcome == "matched", False, *came))
    of_rows = {**CARRIED, "identity": pl.Binary}
    frame = pl.DataFrame(rows, schema_overrides=of_rows) if rows else pl.DataFrame(schema=of_rows)
    carried = frame.with_columns(pl.lit(None, kind).alias(name) for name, kind in CARRIED.items() if name not in frame)
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        "account": pl.String,
        "request_id": pl.String,
        "outcome": pl.String,
        "request_lsn": pl.Int64,
    }
    kinds |= {"completion_lsn": pl.Int64}
    kinds |= dict.fromkeys(("received_at", "first_received_at"), pl.Datetime("us", "UTC"))
    found = rejoin_outcomes(
        pl.DataFrame(outcomes, schema=kinds),
        carried.select(*CARRIED),
        within_s * 1_000_000,
        (),
        identities=carried.select("lsn", "identity"),
    )
    wanted = answered(events, within_s)
    pairs = found.filter((pl.col("outcome") == "matched") & (pl.col("request_lsn") != pl.col("completion_lsn")))
    assert sorted(pairs.select("request_lsn", "completion_lsn").iter_rows()) == sorted(wanted.items())
    assert len(found) == len(drawn) - len(wanted)
    consumed = {*wanted, *wanted.values()}
    alone = found.filter(pl.col("outcome").is_in(["abandoned", "orphaned"]))
    assert consumed.isdisjoint(alone.select(pl.coalesce("request_lsn", "completion_lsn")).to_series().to_list())
