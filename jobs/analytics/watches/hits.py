"""Rows of usage, as outcomes → what each watch takes: by hour how many, and the first of them.

Both add up: an outcome that is taken back has the sign -1, and of two parts the first hits of both are among the first
of each. So any cut of usage into parts and batches makes the same hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.analytics.watches.attributes import with_attributes
from jobs.analytics.watches.running import RunningWatches

HITS, SEEN = "*hits", "*seen"
"""The views of rows of `staged` that are no panes: hits of a watch in an hour, and the last minute of the rows."""
OF_ROWS = ("request_lsn", "completion_lsn", "sign", "request_id")
"""Columns of usage that hits need beside those of conditions."""
MAX_ROWS = 100_000
"""Outcomes that are evaluated at once."""
MAX_PAIRS = 4_000_000
"""Hits that are reduced at once."""
HOUR = ("watch", "hour")
HIT = (*HOUR, "request_lsn", "completion_lsn")
ORDER = ("request_lsn", "completion_lsn")
"""The first hits are those that were received first."""


class Hits:
    """The hits of a part of usage, part by part."""

    def __init__(self) -> None:
        self._hits: pl.DataFrame | None = None
        self._hours: pl.DataFrame | None = None
        self._last: pl.DataFrame | None = None

    def add(self, rows: pl.DataFrame, running: RunningWatches) -> None:
        """Run these rows (event_time, OF_ROWS, the columns of watches) past all watches."""
        if rows.is_empty():
            return
        at = pl.col("event_time").dt.convert_time_zone("UTC")
        minute = rows.select(at.max().dt.truncate("1m"))
        self._last = minute if self._last is None else pl.concat([self._last, minute]).max()
        if not running.stored:
            return
        identified = rows.select(
            "account",
            "request_id",
            *[pl.col(name).fill_null(0) for name in ORDER],
            row=pl.int_range(pl.len(), dtype=pl.UInt32),
            net=pl.col("sign").cast(pl.Int64),
            hour=at.dt.truncate("1h"),
            event_time=at,
        )
        waiting: list[pl.DataFrame] = []
        count = 0
        for pairs in running.index.pairs(with_attributes(rows, running.accounts, running.of_accounts)):
            waiting.append(pairs)
            count += len(pairs)
            if count >= MAX_PAIRS:
                self._reduce(pl.concat(waiting), identified, running.max_hits)
                waiting, count = [], 0
        if count:
            self._reduce(pl.concat(waiting), identified, running.max_hits)

    def _reduce(self, pairs: pl.DataFrame, identified: pl.DataFrame, max_hits: int) -> None:
        found = pairs.join(identified, on="row", how="inner").drop("row")
        hours = found.group_by(HOUR).agg(pl.sum("net"))
        self._hours = hours if self._hours is None else _added(HOUR, self._hours, hours)
        hits = _of_outcomes(found)
        hits = hits if self._hits is None else _of_outcomes(pl.concat([self._hits, hits.select(self._hits.columns)]))
        self._hits = hits.sort(ORDER).group_by(HOUR, maintain_order=True).head(max_hits)

    def hours(self) -> list[dict[str, Any]]:
        """How many there are: watch, hour, net."""
        return [] if self._hours is None else self._hours.to_dicts()

    def by_hour(self) -> Iterator[dict[str, Any]]:
        """Of one watch: hour, hits, and the first hit's event_time, account and request_id; hours with hits, in order.

        The first is null where all that are known of an hour were taken back.
        """
        if self._hits is None or self._hours is None:
            return
        standing = self._hits.filter(pl.col("net") > 0).sort(ORDER).unique(HOUR, keep="first", maintain_order=True)
        named = [pl.col(name).alias(f"first_{name}") for name in ("event_time", "account", "request_id")]
        found = self._hours.filter(pl.col("net") > 0).join(standing.select(*HOUR, *named), on=HOUR, how="left")
        yield from found.sort("hour").rename({"net": "hits"}).drop("watch").to_dicts()

    def staged(self, schema: pa.Schema) -> pa.Table:
        """The same as rows of `staged`: `version` is the watch, `window_start` the hour, `measures` the rest."""
        parts = [pl.DataFrame(schema.empty_table())]
        columns = parts[0].schema
        if self._last is not None:
            last = self._last.select(pl.lit(SEEN).alias("view"), window_start="event_time")
            parts.append(_staged(last, columns))
        if self._hits is not None and self._hours is not None:
            first = self._hits.group_by(HOUR).agg(
                first=pl.struct(*ORDER, "net", "account", "request_id", at=pl.col("event_time").dt.epoch("us")).sort_by(
                    ORDER
                )
            )
            found = self._hours.join(first, on=HOUR, how="inner").select(
                pl.lit(HITS).alias("view"),
                version=pl.col("watch").cast(pl.String),
                window_start="hour",
                measures=pl.struct("net", "first").struct.json_encode(),
            )
            parts.append(_staged(found, columns))
        return pl.concat(parts).to_arrow().cast(schema)


def _of_outcomes(found: pl.DataFrame) -> pl.DataFrame:
    return found.group_by(HIT).agg(pl.sum("net"), pl.min("event_time"), pl.max("account"), pl.max("request_id"))


def _added(keys: tuple[str, ...], *parts: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([part.select(*keys, "net") for part in parts]).group_by(keys).agg(pl.sum("net"))


def _staged(rows: pl.DataFrame, columns: pl.Schema) -> pl.DataFrame:
    missing = {"version": "", "keys": "[]", "measures": "{}"}
    given = [pl.lit(value, pl.String).alias(name) for name, value in missing.items() if name not in rows.columns]
    return rows.with_columns(given).select(pl.col(name).cast(kind) for name, kind in columns.items())


def hits_of(rows: pl.DataFrame | pa.Table, running: RunningWatches, schema: pa.Schema) -> pa.Table:
    """Rows of usage as outcomes, which the driver has → rows of `staged`."""
    found = Hits()
    for part in pl.DataFrame(rows).iter_slices(MAX_ROWS):
        found.add(part, running)
    return found.staged(schema)


def hits_in_tasks(rows: DataFrame, running: RunningWatches, schema: pa.Schema) -> DataFrame:
    """Rows of usage as outcomes → rows of `staged`, made by Polars in tasks: a plan of 10,000 columns takes minutes."""
    return rows.select(*columns_read(running)).mapInArrow(_in_task(running, schema), from_arrow_schema(schema))


def columns_read(running: RunningWatches) -> list[str]:
    """The columns of outcomes that hits are made of, each once: a watch may name the request, too."""
    return [*dict.fromkeys(("event_time", *OF_ROWS, *running.of_outcomes))]


def _in_task(
    running: RunningWatches, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = Hits()
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= MAX_ROWS:
                found.add(_frame(waiting), running)
                waiting = []
        if waiting:
            found.add(_frame(waiting), running)
        yield from found.staged(schema).to_batches()

    return run


def _frame(batches: list[pa.RecordBatch]) -> pl.DataFrame:
    return pl.DataFrame(pa.Table.from_batches(batches))
