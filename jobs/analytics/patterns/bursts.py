"""Stored outcomes → bursts that are final → `pattern_matches`, as matches of sequences are stored (`decide`).

Which windows are bursts depends on the outcomes and on `final_until` alone. An outcome that came or went late has the
windows of its key decided again that count it, as their own or as of the time before: those from its own window on
until `over` later. What is found is compared with what stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from jobs.analytics.patterns.blocks import AT
from jobs.analytics.patterns.burst_windows import (
    BEFORE,
    COUNT,
    FIRST,
    FIRST_LSN,
    LAST,
    LAST_LSN,
    WINDOW,
    bursts_between,
)
from jobs.analytics.patterns.conditions import is_counted
from jobs.analytics.patterns.decide import Deciding
from jobs.analytics.patterns.declared import Declared, decided
from jobs.analytics.patterns.matches import Found, Key, append, changes, first_standing, standing_of
from jobs.analytics.patterns.reading import Blocks
from metering.instants import EPOCH
from metering.patterns.burst import Burst

_MICROSECOND = timedelta(microseconds=1)


def decide_bursts(
    around: Deciding, declared: Declared[Burst], came: pl.DataFrame, gone: pl.DataFrame
) -> Declared[Burst]:
    """Decide all windows that have ended now, and again those that late outcomes may have changed.

    `came` and `gone`: outcomes at or before `final_until` (keys, AT, LSN, columns). Returns the burst with its new
    `final_until`.
    """
    revised = _revised(declared.pattern, came, gone)
    if not revised.is_empty():
        _revise(around, declared, revised)
    until = declared.decides(around.frontier)
    for start, end in _steps(around, declared, declared.final_until, until):
        _decide(around, declared, start, end, None)
    return decided(around.cursor, declared, until)


def _revised(burst: Burst, came: pl.DataFrame, gone: pl.DataFrame) -> pl.DataFrame:
    """`partition_by`, and the `first` and `last` time of what came or went and is counted."""
    keys = [*burst.partition_by]
    both = pl.concat([frame.filter(is_counted(burst)).select(*keys, AT) for frame in (came, gone)])
    return both.group_by(keys).agg(first=pl.col(AT).min(), last=pl.col(AT).max())


def _revise(around: Deciding, declared: Declared[Burst], revised: pl.DataFrame) -> None:
    burst, names = declared.pattern, [*declared.pattern.partition_by]
    begins, ends = revised.select(pl.col("first").min(), pl.col("last").max()).row(0)
    until = min(declared.final_until, _window_of(burst, ends) + burst.over + burst.window)
    for start, end in _steps(around, declared, _window_of(burst, begins), until):
        counts_it = (pl.col("first") < end) & (pl.col("last") >= start - burst.over)
        wanted = revised.filter(counts_it).select(names)
        if not wanted.is_empty():
            _decide(around, declared, start, end, wanted)


def _steps(
    around: Deciding, declared: Declared[Burst], start: datetime, until: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """From the start of a window to the end of another in steps of whole windows, of not too much time and, unless of
    one window, not too many outcomes; without empty ones.

    What is compared with a time of which not all outcomes were looked at is left out.
    """
    burst = declared.pattern
    if declared.since is not None:
        start = max(start, _window_of(burst, declared.since + burst.over + burst.window - _MICROSECOND))
    time = max(burst.window, around.read_batch.time - around.read_batch.time % burst.window)
    while start < until:
        after, last = start - _MICROSECOND, until - _MICROSECOND
        firsts = [around.blocks.first_minute(after, last), first_standing(around.cursor, declared, after, last)]
        if not (begins := min((first for first in firsts if first is not None), default=None)):
            return
        start = max(start, _window_of(burst, begins))
        end = min(until, start + time)
        rows = 0
        for _, minute, count in around.blocks.listed(start - _MICROSECOND, end - _MICROSECOND):
            window = _window_of(burst, minute)
            if rows + count > around.read_batch.rows and window > start:
                end = window
                break
            rows += count
        yield start, end
        start = end


def _decide(
    around: Deciding, declared: Declared[Burst], start: datetime, end: datetime, wanted: pl.DataFrame | None
) -> None:
    """Decide the windows from one instant to another, of the keys `wanted` or of all."""
    standing = standing_of(around.cursor, declared, start - _MICROSECOND, end - _MICROSECOND)
    if wanted is not None:
        of = {*wanted.rows()}
        standing = {key: matches for key, matches in standing.items() if key in of}
    found = _found(declared, around.blocks, start, end, wanted)
    rows = [row for key in {**standing, **found} for row in changes(standing.get(key, ()), found.get(key, ()))]
    append(around.cursor, declared, rows, around.frontier, around.read_batch.changes)


def _found(
    declared: Declared[Burst], blocks: Blocks, start: datetime, end: datetime, wanted: pl.DataFrame | None
) -> Mapping[Key, Sequence[Found]]:
    """The bursts of these windows by key."""
    burst = declared.pattern
    found = defaultdict[Key, list[Found]](list)
    for row in bursts_between(declared, blocks, start, end, wanted).iter_rows(named=True):
        key = tuple(row[name] for name in burst.partition_by)
        found[key].append(_match(burst, key, row))
    return found


def _match(burst: Burst, key: Key, row: Mapping[str, Any]) -> Found:
    keys = dict(zip(burst.partition_by, key, strict=True))
    return Found(
        burst.match_id(key, row[WINDOW]),
        keys,
        keys.get("account"),
        row[FIRST_LSN],
        row[LAST_LSN],
        row[FIRST],
        row[LAST],
        row[COUNT],
        {"before": row[BEFORE]},
    )


def _window_of(burst: Burst, instant: datetime) -> datetime:
    return instant - (instant - EPOCH) % burst.window
