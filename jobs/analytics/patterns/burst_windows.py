"""Stored outcomes → how many each window of a key has, and how many the time before it: those that are bursts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import polars as pl

from jobs.analytics.patterns.blocks import AT, LSN
from jobs.analytics.patterns.conditions import is_counted
from jobs.analytics.patterns.declared import Declared
from jobs.analytics.patterns.reading import Blocks, seen_by
from metering.patterns.burst import Burst

WINDOW, COUNT, BEFORE = "#window", "#count", "#before"
"""The start of a window in microseconds since the epoch, its outcomes, and those of `over` before."""
FIRST, LAST, FIRST_LSN, LAST_LSN = "#first", "#last", "#first lsn", "#last lsn"
"""The first and the last outcome of a window: when, in microseconds since the epoch, and the lsn of each."""
_KEY, _UP_TO = "#number of key", "#up to"
_MICROSECOND = timedelta(microseconds=1)


def bursts_between(
    declared: Declared[Burst], blocks: Blocks, start: datetime, end: datetime, wanted: pl.DataFrame | None
) -> pl.DataFrame:
    """The windows from one instant to another that are bursts, of the keys `wanted` or of all, by time: `partition_by`
    and the columns above.

    The outcomes of one window are held at once, and of the time before only how many there were of the keys that have
    `at_least` in some window.
    """
    burst, names = declared.pattern, [*declared.pattern.partition_by]
    large = _large_windows(declared, blocks, start, end, wanted)
    if large.is_empty():
        return large
    keys = large.select(names).unique(maintain_order=True).with_row_index(_KEY)
    numbered = large.join(keys, on=names, how="left", nulls_equal=True)
    counted = _with_before(numbered, _windows_of(declared, blocks, keys, start - burst.over, end), burst)
    count, before = (pl.col(name).cast(pl.Int128) for name in (COUNT, BEFORE))
    return counted.filter(count * burst.windows_before >= before * burst.times).sort(WINDOW)


def _large_windows(
    declared: Declared[Burst], blocks: Blocks, start: datetime, end: datetime, wanted: pl.DataFrame | None
) -> pl.DataFrame:
    """The windows that have `at_least` outcomes: keys, WINDOW (its start in microseconds since the epoch), COUNT, and
    the first and last outcome.
    """
    burst = declared.pattern
    by = [*burst.partition_by, WINDOW]
    parts = [_summary(seen_by(declared, []).with_columns(_window(burst)), by)]
    for rows in _counted(declared, blocks, start, end):
        of = rows if wanted is None else rows.join(wanted, on=wanted.columns, how="semi", nulls_equal=True)
        # An outcome that is stored twice counts twice here, so none is missing.
        large = of.group_by(by).len().filter(pl.col("len") >= burst.at_least)
        if not large.is_empty():
            summary = _summary(of.join(large, on=by, how="semi", nulls_equal=True), by)
            parts.append(summary.filter(pl.col(COUNT) >= burst.at_least))
    return pl.concat(parts)


def _summary(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    once = rows.unique([*by, AT, LSN]).sort(AT, LSN)
    at, lsn = pl.col(AT).dt.epoch("us"), pl.col(LSN)
    return once.group_by(by).agg(
        pl.len().cast(pl.Int64).alias(COUNT),
        at.first().alias(FIRST),
        at.last().alias(LAST),
        lsn.first().alias(FIRST_LSN),
        lsn.last().alias(LAST_LSN),
    )


def _windows_of(
    declared: Declared[Burst], blocks: Blocks, keys: pl.DataFrame, start: datetime, end: datetime
) -> pl.DataFrame:
    """How many outcomes each window of these keys has: _KEY, WINDOW, COUNT."""
    names, by = [*declared.pattern.partition_by], [_KEY, WINDOW]
    parts = [pl.DataFrame(schema={_KEY: pl.UInt32, WINDOW: pl.Int64, COUNT: pl.Int64})]
    for rows in _counted(declared, blocks, start, end):
        once = rows.join(keys, on=names, how="inner", nulls_equal=True).unique([*by, AT, LSN])
        parts.append(once.group_by(by).agg(pl.len().cast(pl.Int64).alias(COUNT)).select(*by, COUNT))
    return pl.concat(parts)


def _counted(declared: Declared[Burst], blocks: Blocks, start: datetime, end: datetime) -> Iterator[pl.DataFrame]:
    """The outcomes that are counted from one instant to another, with WINDOW; each window's at once."""
    burst, after, until = declared.pattern, start - _MICROSECOND, end - _MICROSECOND
    for frames in blocks.read(after, until, whole=burst.window):
        yield seen_by(declared, frames, after, until).filter(is_counted(burst)).with_columns(_window(burst))


def _with_before(large: pl.DataFrame, windows: pl.DataFrame, burst: Burst) -> pl.DataFrame:
    """Windows of keys with `before`: how many outcomes `over` before it has."""
    sums = windows.sort(WINDOW).select(_KEY, WINDOW, pl.col(COUNT).cum_sum().over(_KEY).alias(_UP_TO))
    over = burst.over // _MICROSECOND

    def up_to(instant: pl.Expr) -> pl.Series:
        instants = large.select(_KEY, instant.alias("at")).with_row_index("place").sort("at")
        joined = instants.join_asof(
            sums.rename({WINDOW: "at"}),
            on="at",
            by=_KEY,
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        return joined.sort("place")[_UP_TO].fill_null(0)

    window = pl.col(WINDOW)
    return large.with_columns((up_to(window) - up_to(window - over)).alias(BEFORE))


def _window(burst: Burst) -> pl.Expr:
    micros = pl.col(AT).dt.epoch("us")
    return (micros - micros % (burst.window // _MICROSECOND)).alias(WINDOW)
