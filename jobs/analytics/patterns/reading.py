"""Blocks of outcomes from Postgres, each opened once in a batch, and what a pattern sees of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.patterns.blocks import AT, INSTANT, LSN, columns_of, read_block
from jobs.analytics.patterns.declared import Declared
from metering.instants import EPOCH
from metering.patterns.burst import AnyPattern
from metering.windows import MINUTE

MAX_BYTES = 1 << 27
"""Of opened blocks that are held for the next pattern."""
MAX_READ = 100_000
"""Outcomes that are read at once."""
BATCH_BLOCKS = 2_000
"""Blocks that are opened between two statements: each takes 0.4 ms however small it is, and late outcomes may be in
every minute of weeks. Postgres ends a session that is idle for ten seconds within its transaction."""
_LISTED = """
SELECT block_id, minute, rows FROM pattern_outcomes WHERE minute > %s AND minute <= %s ORDER BY minute, block_id
"""
_FIRST = "SELECT min(minute) FROM pattern_outcomes WHERE minute > %s AND minute <= %s"
_CONTENT = "SELECT block_id, outcomes FROM pattern_outcomes WHERE block_id = ANY (%s)"


class Blocks:
    """The blocks that are stored, within one transaction."""

    def __init__(
        self,
        cursor: psycopg.Cursor[Any],
        max_bytes: int = MAX_BYTES,
        max_outcomes: int = MAX_READ,
        batch_blocks: int = BATCH_BLOCKS,
    ) -> None:
        self._cursor = cursor
        self._max_outcomes = max_outcomes
        self._max_bytes = max_bytes
        self._batch_blocks = batch_blocks
        self._opened: dict[int, tuple[pl.DataFrame, int]] = {}
        self._bytes = 0

    def listed(self, after: datetime, until: datetime) -> Sequence[tuple[int, datetime, int]]:
        """Of blocks that may hold outcomes after one instant and up to another: number, minute, outcomes; by minute."""
        return self._cursor.execute(_LISTED, [after - MINUTE, until]).fetchall()

    def first_minute(self, after: datetime, until: datetime) -> datetime | None:
        """The first minute that may hold outcomes after one instant and up to another."""
        row = self._cursor.execute(_FIRST, [after - MINUTE, until]).fetchone()
        return None if row is None else row[0]

    def read(self, after: datetime, until: datetime, whole: timedelta = timedelta()) -> Iterator[list[pl.DataFrame]]:
        """The same, opened, so many at a time that they hold at most `max_outcomes`, or a single block.

        With `whole`, tumbling windows of that length are read whole: more at a time where one has more.
        """
        waiting: list[int] = []
        rows = 0
        last = None
        for block_id, minute, count in self.listed(after, until):
            start = minute - (minute - EPOCH) % whole if whole else None
            if waiting and rows + count > self._max_outcomes and (start is None or start != last):
                yield self.get(waiting)
                waiting, rows = [], 0
            waiting.append(block_id)
            rows += count
            last = start
        if waiting:
            yield self.get(waiting)

    def get(self, numbers: Sequence[int]) -> list[pl.DataFrame]:
        """These blocks, in the order of their numbers."""
        found = {number: self._opened[number][0] for number in numbers if number in self._opened}
        missing = [number for number in numbers if number not in found]
        for first in range(0, len(missing), self._batch_blocks):
            some = missing[first : first + self._batch_blocks]
            for number, content in self._cursor.execute(_CONTENT, [some], binary=True).fetchall():
                found[number] = self._open(number, content)
        return [found[number] for number in sorted(found)]

    def _open(self, number: int, content: bytes) -> pl.DataFrame:
        frame = read_block(content)
        self._opened[number] = frame, len(content)
        self._bytes += len(content)
        while self._bytes > self._max_bytes and len(self._opened) > 1:
            # The first that was opened goes first: the next pattern reads the same minutes.
            _, size = self._opened.pop(next(iter(self._opened)))
            self._bytes -= size
        return frame


def seen_by(
    declared: Declared[AnyPattern],
    frames: Iterable[pl.DataFrame],
    after: datetime | None = None,
    until: datetime | None = None,
) -> pl.DataFrame:
    """AT, LSN and the columns of a pattern, of outcomes that it looks at after one instant and up to another."""
    kinds = {AT: INSTANT, LSN: pl.Int64(), **columns_of([declared.pattern])}
    found = [pl.DataFrame(schema=kinds), *(of_columns(frame, kinds) for frame in frames)]
    at = pl.col(AT)
    bounds = [
        *([at > after] if after is not None else []),
        *([at <= until] if until is not None else []),
        *([at >= declared.since] if declared.since is not None else []),
    ]
    return pl.concat(found, rechunk=False).filter(*bounds)


def of_columns(frame: pl.DataFrame, kinds: dict[str, Any]) -> pl.DataFrame:
    """These columns; null where the block was written before any pattern read it."""
    return frame.select(
        pl.col(name) if name in frame.columns else pl.lit(None, kind).alias(name) for name, kind in kinds.items()
    )
