"""Usage rows → the members that they add to periods and remove, as STAGED.

A row that came after the close of a period stays by itself; all others are added up by member. No member is dropped,
because a period's quantity depends on all of them.
"""

from __future__ import annotations

import polars as pl

from jobs.billing.rules import grace, history_until, of_meter
from jobs.runtime.effective_rules import EffectiveRules
from jobs.usage_members import MEMBERS, members, plain
from metering.period_meters import Aggregation
from metering.vocabulary import UsageCause

_IS_STREAM = pl.col("cause") == UsageCause.STREAM.value
_INSTANT = pl.Datetime("us", "UTC")
_READ = (
    *("lsn", "account", "model", "event_time", "received_at", "first_received_at", "sign", "cause", "corrects_lsns"),
    *("frontier", MEMBERS),
)
_KEY = (
    *("window_start", "account", "model", "meter", "currency", "price_version", "cause", "sign", "usage_lsn"),
    *("corrects_lsns", "is_correction", "ends_at", "day", "aggregation", "period", "member", "value", "occurred_at"),
)


def member_sums(usage: pl.DataFrame, effective: EffectiveRules) -> pl.DataFrame:
    """Rows of usage with the columns that `sums` adds → columns of STAGED; `quantity` is how often a member is added.

    `window_start` is the minute in which the period begins, and `day` its first day.
    """
    entries = members(usage.select(*_READ))
    is_number = pl.col("aggregation") != Aggregation.UNIQUE.value
    occurred_at = pl.when(pl.col("aggregation") == Aggregation.LATEST.value).then("event_time").cast(_INSTANT)
    number = pl.concat_str(
        occurred_at.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"), plain(pl.col("value")), separator=" ", ignore_nulls=True
    )
    placed = entries.with_columns(
        window_start=pl.col("starts_at").dt.truncate("1m"),
        day="first_day",
        occurred_at=occurred_at,
        member=pl.when(is_number).then(number).otherwise("member"),
    )
    return (
        _with_corrections(placed, effective)
        .group_by(_KEY)
        .agg(
            pl.max("unit_price"),
            pl.min("unit_price").alias("lowest_unit_price"),
            pl.max("event_time", "received_at"),
            pl.min("lsn").alias("first_lsn"),
            quantity=pl.sum("sign").cast(pl.Int64),
            metered_rows=pl.len().cast(pl.Int64),
            late=pl.lit(value=False),
            unmetered_rows=pl.lit(0, pl.Int64),
            unsound_rows=pl.lit(0, pl.Int64),
        )
    )


def _with_corrections(entries: pl.DataFrame, effective: EffectiveRules) -> pl.DataFrame:
    """With `is_correction`, what it corrects, and `ends_at` of what came after the close, as windows close.

    All of it follows from the row of usage alone. What corrects or replaces a late row is late itself. History that
    comes after the close (`history_until`) is no correction, but keeps its place until `merged` knows whether its
    period has any.
    """
    ends_at, received_at, first_received_at = pl.col("ends_at"), pl.col("received_at"), pl.col("first_received_at")
    closes_at = pl.col("ends_at") + of_meter(grace(effective.rules), pl.Duration("us"))
    had_closed = (ends_at <= of_meter(effective.closed_before, _INSTANT)).fill_null(value=False)
    until = pl.lit(history_until(effective.rules), _INSTANT)
    is_history = (first_received_at < received_at) & (ends_at <= until).fill_null(value=False)
    is_late = had_closed | (received_at >= closes_at)
    is_straggler = is_late & ~(is_history & (first_received_at < closes_at))
    was_closed = had_closed | (closes_at <= pl.col("frontier")).fill_null(value=False)
    placed = entries.with_columns(
        is_correction=is_straggler | (~_IS_STREAM & was_closed),
        ends_at=pl.when(is_late | (~_IS_STREAM & was_closed)).then("ends_at"),
    )
    return placed.with_columns(
        usage_lsn=pl.when(pl.col("ends_at").is_not_null()).then("lsn"),
        corrects_lsns=pl.when(pl.col("is_correction") & ~_IS_STREAM).then("corrects_lsns"),
    )
