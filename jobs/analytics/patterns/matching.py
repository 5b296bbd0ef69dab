"""The outcomes of a key → its matches as they are stored, with their measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.patterns.blocks import LSN, stored_as
from jobs.analytics.patterns.matches import Found
from jobs.analytics.patterns.rows import OfKey
from metering.patterns.matcher import MAX_ROWS, matches
from metering.patterns.pattern import AfterMatch, Pattern

BATCH_STARTS = 1_000
"""First rows of matches, after which Postgres hears of the driver: they take some seconds at most."""
PAGE = 4_096
"""Rows of which the values are read at once: a frame costs as much for one row as for hundreds."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass
class Heartbeat:
    """Asks Postgres for nothing now and then: it ends a session that is silent for ten seconds within its transaction,
    and ten thousands of matches take longer than that. A driver that is frozen stays silent.
    """

    cursor: psycopg.Cursor[Any]
    starts: int = 0

    def beat(self, starts: int) -> None:
        """After so many more first rows."""
        self.starts += starts
        if self.starts >= BATCH_STARTS:
            self.starts = 0
            self.cursor.execute("SELECT")


def found_in(of: OfKey, pattern: Pattern, behind: tuple[int, int], heartbeat: Heartbeat) -> Iterator[Found]:
    """The matches of a key that begin at one of its `starts`, behind another one: a time and an lsn."""
    lsns, times, variables = of.outcomes[LSN].to_list(), of.micros.tolist(), of.variables.tolist()
    starts = [row for row in of.starts.tolist() if (times[row], lsns[row]) > behind]
    skips_to_next_row = pattern.after_match is AfterMatch.NEXT_ROW
    within = pattern.within // _MICROSECOND
    values, free = _Values(of.outcomes, pattern), 0
    for at in range(0, len(starts), BATCH_STARTS):
        some = [row for row in starts[at : at + BATCH_STARTS] if row >= free]
        heartbeat.beat(len(some))
        for match in matches(pattern.program, variables, times, within, some, skips_to_next_row=skips_to_next_row):
            free = match.first + 1 if skips_to_next_row else match.end
            rows = values.of(match.first, match.end)
            words = [pattern.variables[number] for number in match.variables]
            first, last = match.first, match.end - 1
            yield Found(
                pattern.match_id(lsns[first], lsns[last]),
                dict(zip(pattern.partition_by, of.key, strict=True)),
                rows[0]["account"] if "account" in pattern.partition_by else None,
                lsns[first],
                lsns[last],
                times[first],
                times[last],
                len(rows),
                {measure.name: measure.value(rows, words) for measure in pattern.measures},
            )


class _Values:
    """What a pattern reads of outcomes, as texts; matches come by their first row, and have at most MAX_ROWS."""

    def __init__(self, outcomes: pl.DataFrame, pattern: Pattern) -> None:
        self._outcomes = outcomes
        self._columns = [pl.col(stored_as(pattern, name)).cast(pl.String).alias(name) for name in pattern.columns]
        self._first, self._page = -PAGE, dict[str, list[Any]]()

    def of(self, first: int, end: int) -> list[Mapping[str, Any]]:
        """Of the rows [first, end)."""
        if first >= self._first + PAGE or first < self._first:
            self._first = first
            self._page = self._outcomes.slice(first, PAGE + MAX_ROWS).select(self._columns).to_dict(as_series=False)
        places = range(first - self._first, end - self._first)
        return [{name: values[place] for name, values in self._page.items()} for place in places]
