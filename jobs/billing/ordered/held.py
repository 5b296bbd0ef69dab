"""What is held of the order and of files between two steps of `events.ordered`: bounded, and read again without it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace

import polars as pl

from jobs.billing.ordered.order import Cursor, Generations, Wait, comes_after


@dataclass(frozen=True)
class Planned:
    """What is whole from a position on. It is for good: what comes later changes no whole generation."""

    next_lsn: int
    before_us: int
    waits: tuple[Wait, ...]
    whole: Generations


@dataclass(frozen=True)
class Ahead:
    """The first events (`keyed`) of these generations after a cursor, by KEY, and whether they are all of them."""

    whole: Generations
    waiting_from: int
    after: Cursor | None
    events: pl.DataFrame
    is_all: bool

    def next(self, whole: Generations, waiting_from: int, after: Cursor | None, count: int) -> pl.DataFrame | None:
        """So many of them after this cursor; None where it must be read."""
        if self.whole is not whole or self.waiting_from != waiting_from:
            return None
        if self.after is not None and (after is None or after < self.after):
            return None
        events = self.events if after is None else self.events.filter(comes_after(after))
        return events.head(count) if self.is_all or len(events) >= count else None


@dataclass(frozen=True)
class Soonest:
    """Of EVENTS before `next_lsn` that wait at the watermark `from_us`: all with a time before `until_us`."""

    next_lsn: int
    from_us: int
    until_us: int
    events: pl.DataFrame

    def has_all_of(self, whole: Generations) -> bool:
        """Whether what waited for these generations is among them."""
        is_next = (self.next_lsn, self.from_us) == (whole.first_lsn, whole.before_us)
        return is_next and whole.watermark_us <= self.until_us

    def with_more(self, events: pl.DataFrame, max_events: int) -> Soonest:
        """With others that wait as well: those with the lowest times, about so many."""
        found = pl.concat([self.events, events.filter(pl.col("event_us") < self.until_us)])
        if len(found) <= 2 * max_events:
            return replace(self, events=found)
        until_us = int(found["event_us"].sort()[max_events])
        return replace(self, until_us=until_us, events=found.filter(pl.col("event_us") < until_us))


class HeldByFile:
    """Frames by file, those used last, of at most so many rows together; the last one however large."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._held: OrderedDict[str, pl.DataFrame] = OrderedDict()
        self._rows = 0

    def get(self, path: str) -> pl.DataFrame | None:
        """The frame of this file, if it is held."""
        if path in self._held:
            self._held.move_to_end(path)
        return self._held.get(path)

    def put(self, path: str, frame: pl.DataFrame) -> None:
        """Hold it, in the place of those that were used longest ago."""
        self.drop(path)
        self._held[path] = frame
        self._rows += len(frame)
        while self._rows > self._max_rows and len(self._held) > 1:
            self.drop(next(iter(self._held)))

    def retain(self, paths: Collection[str]) -> None:
        """Drop those of all other files."""
        for path in [path for path in self._held if path not in paths]:
            self.drop(path)

    def drop(self, path: str) -> None:
        """Without it."""
        gone = self._held.pop(path, None)
        self._rows -= 0 if gone is None else len(gone)
