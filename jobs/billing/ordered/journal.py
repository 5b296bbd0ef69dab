"""What `events.ordered` reads of the journal: where F changes, the times of accepted events, and some of the events.

Memory is bounded however long events wait: files are read again, and of those read last only lsns and times are held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from deltalake import DeltaTable

from jobs.billing.ordered.order import KEY, Cursor, Generations, Wait, generations, keyed, waiting
from jobs.journal.families import family
from jobs.runtime.delta.rows_by_lsn import rows_of_file
from jobs.streams import CatalogTopic
from metering.vocabulary import Disposition, Family

MAX_ROWS_HELD = 1_000_000
"""Of which lsn and time are held, of the files read last: 16 bytes each."""
MAX_ROWS_PLANNED = 500_000
"""Of the files whose generations are put in order at once, if that makes one whole generation."""
STATISTIC_US = 1_000
"""Statistics of instants are cut to milliseconds."""
CONTENT = ("lsn", "source", "account", "topic", "partition", "offset", "value")
IS_EVENT = (
    (pl.col("disposition") == Disposition.ACCEPTED.value)
    & ~pl.col("topic").is_in([topic.value for topic in CatalogTopic])
    & family().ne_missing(pl.lit(Family.HEARTBEAT.value))
    & pl.col("event_time").is_not_null()
)
"""Accepted events, of any type, without heartbeats."""


@dataclass(frozen=True)
class Part:
    """Of one file: EVENTS, and RUNS."""

    events: pl.DataFrame
    runs: pl.DataFrame


class JournalParts:
    """The files of one version of the journal, those that may have rows from an lsn on, by lsn."""

    def __init__(self, max_rows_held: int = MAX_ROWS_HELD) -> None:
        self._max_rows_held = max_rows_held
        self._held: OrderedDict[str, Part] = OrderedDict()
        self._rows_held = 0
        self._table: DeltaTable | None = None
        self._files = pl.DataFrame()

    def look(self, table: DeltaTable, first_lsn: int) -> None:
        """Read this version from now on, from `first_lsn`."""
        self._table = table
        files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
        if "max.event_time" not in files.columns:
            files = files.with_columns(pl.lit(None, pl.Datetime("us", "UTC")).alias("max.event_time"))
        self._files = files.filter(pl.col("max.lsn") >= first_lsn).sort("min.lsn")

    def whole(
        self, next_lsn: int, before_us: int, waits: Sequence[Wait], max_rows: int = MAX_ROWS_PLANNED
    ) -> Generations | None:
        """The whole generations from `next_lsn` on: as many as `max_rows` have, but at least one; None without."""
        runs: list[pl.DataFrame] = []
        found, rows = None, 0
        for path, count in self._files.filter(pl.col("max.lsn") >= next_lsn).select("path", "num_records").iter_rows():
            runs.append(self._part(path).runs)
            rows += count
            if rows >= max_rows and (found := generations(_ordered(runs), next_lsn, before_us, waits)) is not None:
                return found
        return generations(_ordered(runs), next_lsn, before_us, waits) if runs else None

    def has_more_after(self, whole: Generations) -> bool:
        """Whether another generation than the one after these has begun in files that were not put in order yet."""
        later = self._files.filter(pl.col("max.lsn") >= whole.next_lsn)["path"].head(2)
        return len(later) > 1

    def first(self, whole: Generations, waiting_from: int, after: Cursor | None, count: int) -> pl.DataFrame:
        """The first events (`keyed`) of these generations after a cursor, at most so many, in their order."""
        found: pl.DataFrame | None = None
        has_new = pl.col("max.lsn") >= whole.first_lsn
        for events in self._events(whole, has_new | _reaches(whole.before_us)):
            of_file = keyed(events.filter(pl.col("lsn") >= waiting_from), whole, after)
            found = of_file if found is None else pl.concat([found, of_file])
            if len(found) > 2 * count:
                found = found.sort(KEY).head(count)
        if found is None:
            found = keyed(pl.DataFrame(schema={"lsn": pl.Int64, "event_us": pl.Int64}), whole, after)
        return found.sort(KEY).head(count)

    def waiting_from(self, whole: Generations, waiting_from: int) -> int:
        """The lowest lsn from `waiting_from` on of an event that comes after these generations; else their end."""
        for events in self._events(whole, _reaches(whole.watermark_us)):
            if (lowest := waiting(events.filter(pl.col("lsn") >= waiting_from), whole)) is not None:
                return lowest
        return whole.next_lsn

    def within(self, lsns: pl.Series, max_bytes: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """`lsn` and `size`, bytes of the event, of these rows; and their CONTENT, if no more than `max_bytes`."""
        size = pl.col("value").bin.size().fill_null(0).cast(pl.Int64).alias("size")
        sizes: list[pl.DataFrame] = []
        held: list[pl.DataFrame] = []
        total = 0
        for rows in self._rows(lsns, CONTENT):
            sizes.append(rows.select("lsn", size))
            total += int(sizes[-1]["size"].sum())
            held.append(rows)
            if total > max_bytes:
                held.clear()
        return pl.concat(sizes), pl.concat(held) if total <= max_bytes else None

    def contents(self, lsns: pl.Series) -> pl.DataFrame:
        """CONTENT of these rows, in any order."""
        return pl.concat([*self._rows(lsns, CONTENT)])

    def _rows(self, lsns: pl.Series, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        ordered = lsns.sort()
        low = ordered.search_sorted(self._files["min.lsn"], side="left")
        high = ordered.search_sorted(self._files["max.lsn"], side="right")
        for path in self._files.filter(low < high)["path"]:
            yield rows_of_file(self._opened, path, pl.col("lsn").is_in(ordered.implode()), columns)

    def _events(self, whole: Generations, condition: pl.Expr) -> Iterator[pl.DataFrame]:
        for path in self._files.filter(pl.col("min.lsn") < whole.next_lsn, condition)["path"]:
            yield self._part(path).events

    def _part(self, path: str) -> Part:
        if path in self._held:
            self._held.move_to_end(path)
            return self._held[path]
        part = _part_of(self._opened, path)
        self._held[path] = part
        self._rows_held += len(part.events)
        while self._rows_held > self._max_rows_held and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._rows_held -= len(gone.events)
        return part

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None
        return self._table


def _part_of(table: DeltaTable, path: str) -> Part:
    columns = ("lsn", "topic", "disposition", "family", "type", "event_time", "frontier")
    rows = rows_of_file(table, path, pl.lit(value=True), columns).sort("lsn")
    frontier = pl.col("frontier").dt.epoch("us").alias("frontier_us")
    changes = pl.col("frontier_us").ne_missing(pl.col("frontier_us").shift()) | (pl.int_range(pl.len()) == 0)
    events = rows.filter(IS_EVENT).select("lsn", pl.col("event_time").dt.epoch("us").alias("event_us"))
    return Part(events, rows.select("lsn", frontier).filter(changes))


def _reaches(instant_us: int) -> pl.Expr:
    """Whether a file may have an event of this time or a later one; without a statistic it may."""
    return (pl.col("max.event_time").dt.epoch("us") + STATISTIC_US >= instant_us).fill_null(value=True)


def _ordered(runs: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(runs).sort("lsn")
