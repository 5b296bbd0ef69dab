"""Rows of usage → what billing must have made of them: windows, single rows (stragglers), and days.

It uses billing's own `sums`, under the rules that were in effect when each row was billed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.audit.bills.decisions import CORRECTING, ENTRY, IS_BILLED, NOTHING_DECIDED, Decisions
from jobs.audit.bills.holds import INSTANT, settle
from jobs.audit.bills.members import correcting_members, made_members
from jobs.audit.recompute.money import SUM
from jobs.billing.staged import STAGED
from jobs.billing.sums import COLUMNS, IS_DECISION, IS_FROM_STREAM, sums
from jobs.runtime.effective_rules import EffectiveRules, History
from jobs.streams import UNIT_PRICE, USAGE
from jobs.usage_entries import METERED_COLUMNS, METERS
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import UsageCause
from metering.windows import MINUTE

PRICE = pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale)
NOT_PLACED = date(1, 1, 1)
"""The day of usage that an earlier release wrote: it may not say any, and a migration made days of its minutes."""
_LAST_LSN = 2**63 - 1

OF_WINDOW = ("window_start", "account", "model", "meter", "currency")
WINDOW_KEY = (*OF_WINDOW, "price_version")
WINDOWS = pl.Schema(
    {
        "window_start": INSTANT,
        **{name: pl.String() for name in OF_WINDOW[1:]},
        "price_version": pl.Int64(),
        "unit_price": PRICE,
        "quantity": SUM,
        "late_quantity": SUM,
        "late_rows": pl.Int64(),
        "unmetered_rows": pl.Int64(),
        "corrected": pl.Boolean(),
    }
)
"""`usage_windows`. In recomputed rows, `corrected` says whether a straggler has corrected the window."""
ALONE = pl.Schema(
    {
        "usage_lsn": pl.Int64(),
        "meter": pl.String(),
        "account": pl.String(),
        "model": pl.String(),
        "request_id": pl.String(),
        "window_start": INSTANT,
        "event_time": INSTANT,
        "received_at": INSTANT,
        "decision": pl.String(),
        "quantity": SUM,
        "contained_quantity": SUM,
        "unit_price": PRICE,
        "currency": pl.String(),
        "price_version": pl.Int64(),
        "cause": pl.String(),
        "corrects_lsns": pl.String(),
        "day": pl.Date(),
        "dimensions": pl.String(),
        "hold_until": INSTANT,
        "hold_expires": pl.String(),
        "decided_lsn": pl.Int64(),
        "decided_at": INSTANT,
        "decided_by": pl.String(),
        "reason": pl.String(),
    }
)
"""A straggler, or an entry that corrects others: without a decision it is no straggler."""
MADE_ALONE = pl.Schema({**ALONE, "was_closed": pl.Boolean(), "contained_version": pl.Int64()})
"""The same as usage says it; `was_closed`: what corrects others met a closed window (null: usage does not say).

`contained_version`: the price version of what of it another meter bills, which is a window of its own; null: nothing.
"""
_SUMMED = (*ENTRY, "quantity", "contained_quantity")
DAY_KEY = ("account", "day", "model", "meter", "currency", "price_version")
DAYS = pl.Schema(
    {
        "account": pl.String(),
        "day": pl.Date(),
        **{name: pl.String() for name in ("model", "meter", "currency")},
        "price_version": pl.Int64(),
        "dimensions": pl.String(),
        "unit_price": PRICE,
        "quantity": SUM,
        "usage_rows": pl.Int64(),
        "first_window": INSTANT,
        "last_window_end": INSTANT,
        "corrected": pl.Boolean(),
        "is_put_right": pl.Boolean(),
    }
)
"""`usage_days`; `is_put_right`: something of it corrects others, which may have been a correction or not."""


@dataclass(frozen=True)
class Bills:
    """WINDOWS, MADE_ALONE and DAYS of some usage; each may have several rows of a key, which `added` adds up.

    Meters of a period have `members.MADE_MEMBERS` and CORRECTING_MEMBERS.
    """

    windows: pl.DataFrame
    alone: pl.DataFrame
    days: pl.DataFrame
    members: pl.DataFrame
    correcting: pl.DataFrame


def bills(usage: pa.Table, history: History, decided: Decisions) -> Bills:
    """Rows of usage (COLUMNS, as far as the table has them) → what billing must have made of them.

    `history`: billing's rules, at least one.
    """
    made = _made(usage, history)
    settled = _settled(made, decided)
    rows = settled.join(decided.inherited, on=ENTRY, how="left", suffix="_inherited")
    metered = pl.col("metered_rows") > 0
    rows = rows.with_columns(
        pl.coalesce("decision", "decision_inherited"), window_end=pl.col("window_start") + MINUTE
    ).with_columns(is_correction=IS_FROM_STREAM & metered & pl.col("decision").is_not_null() & IS_BILLED)
    billed = rows.filter(IS_BILLED)
    is_late = pl.col("late")
    windows = billed.select(
        *WINDOW_KEY,
        "unit_price",
        "quantity",
        late_quantity=pl.when(is_late).then("quantity").otherwise(0).cast(SUM),
        late_rows=pl.when(is_late).then("metered_rows").otherwise(0),
        unmetered_rows="unmetered_rows",
        corrected="is_correction",
    )
    days = billed.filter(metered).select(
        *DAY_KEY,
        _as_stored("dimensions"),
        "unit_price",
        "quantity",
        usage_rows=pl.col("sign") * pl.col("metered_rows"),
        first_window="window_start",
        last_window_end="window_end",
        corrected="is_correction",
        is_put_right=pl.col("cause") != UsageCause.STREAM.value,
    )
    alone = rows.filter(pl.col("usage_lsn").is_not_null() & metered).with_columns(_as_stored("dimensions"))
    return Bills(
        added_windows(windows.cast(WINDOWS)),
        _each_once(alone),
        added_days(days.cast(DAYS)),
        made_members(made),
        correcting_members(made),
    )


def _each_once(alone: pl.DataFrame) -> pl.DataFrame:
    """Single rows of STAGED → MADE_ALONE: units that another meter bills are part of their straggler there."""
    is_contained = (pl.col("price_version") <= BILLED_AS_PART).fill_null(value=False)
    alone = alone.with_columns(
        contained_quantity=pl.when(is_contained).then("quantity").otherwise(0).cast(SUM),
        contained_version=pl.when(is_contained).then("price_version"),
    )
    if alone.select(is_contained.any()).item():
        alone = (
            alone.sort(*ENTRY, is_contained)
            .group_by(ENTRY, maintain_order=True)
            .agg(
                pl.first(*(name for name in MADE_ALONE if name not in (*_SUMMED, "contained_version"))),
                pl.sum(*_SUMMED[2:]),
                pl.max("contained_version"),
            )
        )
    return alone.select(MADE_ALONE.names()).cast(MADE_ALONE)


def correcting(usage: pa.Table, history: History) -> pl.DataFrame:
    """Rows of usage of another cause than `stream` → CORRECTING."""
    rows = _settled(_made(usage, history), NOTHING_DECIDED).filter((pl.col("metered_rows") > 0) & ~IS_FROM_STREAM)
    named = pl.col("corrects_lsns").str.strip_chars("{}").str.split(",").cast(pl.List(pl.Int64), strict=False)
    return rows.select(*ENTRY, "sign", "cause", named=named).cast(CORRECTING)


def added_windows(rows: pl.DataFrame) -> pl.DataFrame:
    """WINDOWS with each key once."""
    numbers = ("quantity", "late_quantity", "late_rows", "unmetered_rows")
    summed = rows.group_by(WINDOW_KEY).agg(pl.max("unit_price"), *[pl.sum(name) for name in numbers], _ANY)
    return summed.select(WINDOWS.names()).cast(WINDOWS)


def added_days(rows: pl.DataFrame) -> pl.DataFrame:
    """DAYS with each key once."""
    summed = rows.group_by(*DAY_KEY, "dimensions").agg(
        pl.max("unit_price"),
        pl.sum("quantity", "usage_rows"),
        pl.min("first_window"),
        pl.max("last_window_end"),
        _ANY,
        pl.any("is_put_right"),
    )
    return summed.select(DAYS.names()).cast(DAYS)


_ANY = pl.col("corrected").any()


def _made(usage: pa.Table, history: History) -> pl.DataFrame:
    """STAGED, each row of usage under the rules that it was billed by."""
    rows = _complete(usage)
    parts = [sums(part, effective) for part, effective in _by_rules(rows, history) if len(part)]
    return pl.DataFrame(pa.concat_tables([STAGED.empty_table(), *parts]))


def _settled(made: pl.DataFrame, decided: Decisions) -> pl.DataFrame:
    """The rows of windows (STAGED), with the fate of waiting stragglers."""
    of_windows = made.filter(~IS_DECISION & pl.col("aggregation").is_null())
    return settle(of_windows, decided.journaled, decided.frontier)


def _by_rules(rows: pa.Table, history: History) -> Iterator[tuple[pa.Table, EffectiveRules]]:
    """Rows from before the first known rules use those."""
    firsts = [0, *(effective.first for effective in history[1:]), _LAST_LSN]
    for effective, (first, following) in zip(history, pairwise(firsts), strict=True):
        is_of_it = pc.and_(pc.greater_equal(rows["lsn"], first), pc.less(rows["lsn"], following))
        yield (rows if len(history) == 1 else rows.filter(is_of_it)), effective


def _complete(usage: pa.Table) -> pa.Table:
    """With the columns that its release did not write yet, and a marker day for usage billed without one."""
    for name in COLUMNS:
        if name not in usage.column_names and name not in METERED_COLUMNS:
            usage = usage.append_column(name, pa.nulls(len(usage), USAGE.field(name).type))
    place = usage.column_names.index("day")
    is_of_days = pc.is_valid(usage[METERS]) if METERS in usage.column_names else pa.scalar(False)
    known = pc.if_else(is_of_days, usage["day"], pa.scalar(None, pa.date32()))
    return usage.set_column(place, "day", pc.fill_null(known, pa.scalar(NOT_PLACED, pa.date32())))


def _as_stored(name: str) -> pl.Expr:
    """JSON in one canonical order: the database has no order of fields either."""
    return pl.col(name).map_batches(same_json, return_dtype=pl.String)


def same_json(texts: pl.Series) -> pl.Series:
    """JSON texts, equal where they say the same."""
    if texts.null_count() == len(texts):
        return texts
    known = {text: json.dumps(json.loads(text), sort_keys=True) for text in texts.unique().drop_nulls()}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)
