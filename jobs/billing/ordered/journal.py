"""What `events.ordered` reads of the journal: where F changes, the times of accepted events, and some of the events.

Files may overlap: those that were merged lie around others. So what follows a row is known as far as the first row of
the next file that was not read yet. Memory is bounded however long events wait: files are read again, and of those read
last only lsns and times are held, and the lsns at which F changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile

import numpy as np
import polars as pl
from deltalake import DeltaTable

from jobs.billing.ordered.contents import (
    BATCH_BYTES,
    MAX_BYTES_HELD,
    WHOLE_FILE_BYTES,
    Content,
    HeldContents,
    opened,
)
from jobs.billing.ordered.held import Ahead, HeldByFile, Planned, Soonest
from jobs.billing.ordered.order import (
    EVENTS,
    FOREVER_US,
    KEY,
    Cursor,
    Generations,
    Wait,
    generations,
    keyed,
    left,
    upcoming,
    waiting,
)
from jobs.journal.families import family
from jobs.runtime.delta.live_files import files_of
from jobs.runtime.delta.position import FINGERPRINT, row_hash
from jobs.runtime.delta.rows_by_lsn import rows_of_file
from jobs.runtime.delta.scans import TRUNCATED
from jobs.streams import CatalogTopic, Table
from metering.vocabulary import Disposition, Family

MAX_ROWS_HELD = 1_000_000
"""Of which lsn and time are held, of the files read last: 16 bytes each."""
MAX_RUNS_HELD = 200_000
"""Of files not put in order yet, with F of each: 16 bytes. A file has one, or as many as F changes in it."""
MAX_EVENTS_AHEAD = 200_000
"""Of the generations that are sent, put in order at once and held for the next steps: 33 bytes each.

And of what waits beyond them, by time, up to twice as many of 16 bytes: so a long wait is not read with each step.
"""
MAX_ROWS_PLANNED = 500_000
"""Of the files whose generations are put in order at once, if that makes one whole generation."""
IS_EVENT = (
    (pl.col("disposition") == Disposition.ACCEPTED.value)
    & ~pl.col("topic").is_in([topic.value for topic in CatalogTopic])
    & family().ne_missing(pl.lit(Family.HEARTBEAT.value))
    & pl.col("event_time").is_not_null()
)
"""Accepted events, of any type, without heartbeats."""


class JournalParts:
    """The files of one version of the journal, those that may have rows from an lsn on, by lsn."""

    def __init__(
        self,
        max_rows_held: int = MAX_ROWS_HELD,
        max_runs_held: int = MAX_RUNS_HELD,
        max_events_ahead: int = MAX_EVENTS_AHEAD,
        max_bytes_held: int = MAX_BYTES_HELD,
        *,
        batch_bytes: int = BATCH_BYTES,
        whole_file_bytes: int = WHOLE_FILE_BYTES,
    ) -> None:
        self._batch_bytes, self._whole_file_bytes = batch_bytes, whole_file_bytes
        self._contents = HeldContents(max_bytes_held)
        self._events_held = HeldByFile(max_rows_held)
        self._runs_held = HeldByFile(max_runs_held)
        self._max_events_ahead = max_events_ahead
        self._planned: Planned | None = None
        self._ahead: Ahead | None = None
        self._soonest: Soonest | None = None
        self._table: DeltaTable | None = None
        self._files = pl.DataFrame()
        self._first_lsn = 1

    def look(self, table: DeltaTable, first_lsn: int, files: pl.DataFrame | None = None) -> None:
        """Read the table from now on, from `first_lsn`: `files` (FILES), or those of its version."""
        self._table, self._first_lsn = table, first_lsn
        self._files = (files_of(table) if files is None else files).filter(pl.col("max.lsn") >= first_lsn)
        paths = {*self._files["path"]}
        self._events_held.retain(paths)
        self._runs_held.retain(paths)
        self._contents.retain(paths)

    def whole(
        self, next_lsn: int, before_us: int, waits: tuple[Wait, ...], max_rows: int = MAX_ROWS_PLANNED
    ) -> Generations | None:
        """The whole generations from `next_lsn` on: as many as `max_rows` have, but at least one; None without.

        The same ones as before for the same position.
        """
        planned = self._planned
        if planned is not None and (planned.next_lsn, planned.before_us, planned.waits) == (next_lsn, before_us, waits):
            return planned.whole
        runs: list[pl.DataFrame] = []
        files = self._files.filter(pl.col("max.lsn") >= next_lsn).select(
            "path", pl.col("num_records").cum_sum(), pl.col("min.lsn").shift(-1)
        )
        for path, rows, next_file_lsn in files.iter_rows():
            runs.append(self._runs(path))
            if rows < max_rows and next_file_lsn is not None:
                continue
            if (found := generations(_before(runs, next_file_lsn), next_lsn, before_us, waits)) is not None:
                self._planned = Planned(next_lsn, before_us, waits, found)
                return found
            # F has not moved: looking at each file would cost the square of their number.
            max_rows = 2 * rows
        return None

    def has_more_after(self, whole: Generations) -> bool:
        """Whether another generation than the one after these has begun in files that were not put in order yet."""
        later = self._files.filter(pl.col("max.lsn") >= whole.next_lsn)["path"].head(2)
        return len(later) > 1

    def first(self, whole: Generations, waiting_from: int, after: Cursor | None, count: int) -> pl.DataFrame:
        """The first events (`keyed`) of these generations after a cursor, at most so many, in their order."""
        held = None if self._ahead is None else self._ahead.next(whole, waiting_from, after, count)
        if held is not None:
            return held
        count_read = max(count, self._max_events_ahead)
        events = self._read_first(whole, waiting_from, after, count_read)
        self._ahead = Ahead(whole, waiting_from, after, events, is_all=len(events) < count_read)
        return events.head(count)

    def _read_first(self, whole: Generations, waiting_from: int, after: Cursor | None, count: int) -> pl.DataFrame:
        nothing = pl.DataFrame(schema=EVENTS)
        found = keyed(nothing, whole, after)
        soonest = Soonest(whole.next_lsn, whole.watermark_us, FOREVER_US, nothing)
        has_new = pl.col("max.lsn") >= whole.first_lsn
        if self._soonest is not None and self._soonest.has_all_of(whole):
            of_files = self._events(whole, has_new)
            new = (events.filter(pl.col("lsn") >= whole.first_lsn) for _, events in of_files)
            parts = chain([self._soonest.events], new)
            soonest = replace(soonest, until_us=self._soonest.until_us)
        else:
            parts = chain(events for _, events in self._events(whole, has_new | _reaches(whole.before_us)))
        for part in parts:
            events = part.filter(pl.col("lsn") >= waiting_from)
            found = pl.concat([found, keyed(events, whole, after)])
            if len(found) > 2 * count:
                found = found.sort(KEY).head(count)
            soonest = soonest.with_more(left(events, whole), self._max_events_ahead)
        self._soonest = soonest
        return found.sort(KEY).head(count)

    def waiting_from(self, whole: Generations, waiting_from: int) -> int:
        """The lowest lsn from `waiting_from` on of an event that comes after these generations; else their end."""
        lowest = whole.next_lsn
        for first_lsn, events in self._events(whole, _reaches(whole.watermark_us)):
            if first_lsn > lowest:
                break
            found = waiting(events.filter(pl.col("lsn") >= waiting_from), whole)
            lowest = lowest if found is None else min(lowest, found)
        return lowest

    def contents(
        self, rows: pl.DataFrame, whole: Generations, after: Cursor | None, max_bytes: int
    ) -> list[Content | None]:
        """Of these rows, which come next after a cursor, the first whose events have at most so many bytes, at least
        one: the content of each, or None where there is no such row.

        Of each file that is read for them what comes later is held, too.
        """
        lsns: Sequence[int] = rows["lsn"].to_list()
        for path, size in self._holding(self._contents.missing(lsns)):
            # A file that was merged may have events of before the topic began, which never come.
            events = self._read(path, self._events_held).filter(pl.col("lsn") >= self._first_lsn)
            wanted = upcoming(events, whole, after)
            sizes = {"batch_bytes": self._batch_bytes, "whole_file_bytes": self._whole_file_bytes}
            with opened(self._opened, path, size, **sizes) as file:
                count = file.rows_within(self._contents.max_bytes)
                lsns = _up_to(lsns, wanted["lsn"].slice(count))
                for part in file.read(wanted.head(count)):
                    self._contents.put(part)
                    lsns = self._contents.trim(lsns)
        return self._contents.first(lsns, max_bytes)

    def sent(self, lsns: Iterable[int]) -> None:
        """Hold the contents of these no longer."""
        self._contents.drop(lsns)

    def release(self) -> None:
        """Hold no contents, of which it is not known any more what was sent."""
        self._contents.retain(())

    def row_before(self, next_lsn: int) -> int | None:
        """The fingerprint of the row before this lsn; None where there is none."""
        lsn = next_lsn - 1
        for path, _ in self._holding([lsn]):
            columns = ("lsn", *FINGERPRINT[Table.JOURNAL])
            for row in rows_of_file(self._opened, path, pl.col("lsn") == lsn, columns).iter_rows(named=True):
                return row_hash(Table.JOURNAL, lsn, row)
        return None

    def _holding(self, lsns: Sequence[int]) -> list[tuple[str, int]]:
        """The files that may have these rows, with their bytes."""
        if not lsns:
            return []
        ordered = np.sort(lsns)
        low = np.searchsorted(ordered, self._files["min.lsn"].to_numpy(), side="left")
        high = np.searchsorted(ordered, self._files["max.lsn"].to_numpy(), side="right")
        return self._files.filter(low < high).select("path", "size_bytes").rows()

    def _events(self, whole: Generations, condition: pl.Expr) -> Iterator[tuple[int, pl.DataFrame]]:
        """EVENTS of each file with rows before the end of these generations, with the file's first lsn, by that."""
        files = self._files.filter(pl.col("min.lsn") < whole.next_lsn, condition)
        for path, first_lsn in files.select("path", "min.lsn").iter_rows():
            yield first_lsn, self._read(path, self._events_held)

    def _runs(self, path: str) -> pl.DataFrame:
        return self._read(path, self._runs_held)

    def _read(self, path: str, wanted: HeldByFile) -> pl.DataFrame:
        if (held := wanted.get(path)) is not None:
            return held
        events, runs = _events_and_runs(self._opened, path)
        self._events_held.put(path, events)
        self._runs_held.put(path, runs)
        return events if wanted is self._events_held else runs

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None
        return self._table


def _events_and_runs(table: DeltaTable, path: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """EVENTS and RUNS of one file. A run ends also where rows of another file lie between."""
    columns = ("lsn", "topic", "disposition", "family", "type", "event_time", "frontier")
    rows = rows_of_file(table, path, pl.lit(value=True), columns).sort("lsn")
    frontier = pl.col("frontier").dt.epoch("us").alias("frontier_us")
    changes = pl.col("frontier_us").ne_missing(pl.col("frontier_us").shift())
    follows = pl.col("lsn") == pl.col("lsn").shift() + 1
    events = rows.filter(IS_EVENT).select("lsn", pl.col("event_time").dt.epoch("us").alias("event_us"))
    return events, rows.select("lsn", frontier).filter(changes | follows.ne_missing(other=True))


def _reaches(instant_us: int) -> pl.Expr:
    """Whether a file may have an event of this time or a later one; without a statistic it may."""
    return ((pl.col("max.event_time") + TRUNCATED).dt.epoch("us") >= instant_us).fill_null(value=True)


def _before(runs: Sequence[pl.DataFrame], end: int | None) -> pl.DataFrame:
    """RUNS by lsn, those before the first row that was not read."""
    ordered = pl.concat(runs).sort("lsn")
    return ordered if end is None else ordered.filter(pl.col("lsn") < end)


def _up_to(lsns: Sequence[int], ends: pl.Series) -> Sequence[int]:
    """Those before the first that is among `ends`, which may be most of a large file."""
    found = {*ends.filter(ends.is_in(lsns))}
    return [*takewhile(lambda lsn: lsn not in found, lsns)] if found else lsns
