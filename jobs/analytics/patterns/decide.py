"""Stored outcomes → final matches → `pattern_matches`: what is new, what changed, and what is retracted.

Which matches are final depends on the outcomes and on `final_until` alone. A late outcome has the matches of its key
decided again from `within` before it on, until nothing that follows depends on it; the result is compared with what
stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.patterns.conditions import reads_before
from jobs.analytics.patterns.declared import Declared, decided, step_of
from jobs.analytics.patterns.matches import (
    BATCH_CHANGES,
    Found,
    Key,
    Standing,
    append,
    changes,
    first_standing,
    keys_of,
    standing_of,
)
from jobs.analytics.patterns.matching import BATCH_STARTS, Heartbeat, found_in
from jobs.analytics.patterns.reading import BATCH_BLOCKS, MAX_READ, Blocks
from jobs.analytics.patterns.rows import candidates, rows_of
from metering.instants import EPOCH
from metering.patterns.pattern import AfterMatch, Pattern

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class ReadBatch:
    """How much is decided at a time, so that memory stays bounded: event time, at least a quarter of `within`, and
    outcomes of all keys; how many of them are opened at a time; and after how many first rows of matches, changes and
    opened blocks Postgres hears of the driver.
    """

    time: timedelta = timedelta(hours=1)
    rows: int = 200_000
    opened: int = MAX_READ
    starts: int = BATCH_STARTS
    changes: int = BATCH_CHANGES
    blocks: int = BATCH_BLOCKS


READ_BATCH = ReadBatch()


@dataclass(frozen=True)
class Deciding:
    """What is decided in one batch, and with what."""

    cursor: psycopg.Cursor[Any]
    blocks: Blocks
    frontier: datetime | None
    read_batch: ReadBatch

    @cached_property
    def heartbeat(self) -> Heartbeat:
        """For what takes long without a statement."""
        return Heartbeat(self.cursor, self.read_batch.starts)


def decide(around: Deciding, declared: Declared[Pattern], revised: pl.DataFrame) -> Declared[Pattern]:
    """Decide all matches that are final now, and again those that late outcomes may have changed.

    `revised`: keys, and the `first` and `last` time, at or before `final_until`, at which outcomes came, went or
    changed (`keys_to_revise`). Returns the pattern with its new `final_until`.
    """
    within = declared.pattern.within
    if not revised.is_empty():
        _revise(around, declared, revised)
    until = declared.decides(around.frontier)
    for after, end in _steps(around, declared, declared.final_until - within, until - within):
        _decide(around, declared, after, end, None)
    return decided(around.cursor, declared, until)


def _revise(around: Deciding, declared: Declared[Pattern], revised: pl.DataFrame) -> None:
    pattern, final = declared.pattern, declared.final_until - declared.pattern.within
    names = [*pattern.partition_by]
    waiting = {tuple(key): (first - pattern.within - _MICROSECOND, last) for *key, first, last in revised.rows()}
    after_last = pattern.within if reads_before(pattern) else timedelta()
    revising: dict[Key, datetime] = {}
    at = EPOCH - 2 * pattern.within
    while waiting or revising:
        if not revising:
            at = max(at, min(first for first, _ in waiting.values()))
        step = next(_steps(around, declared, at, final), None)
        if step is None:
            return
        at, end = step
        begun = {key: last for key, (first, last) in waiting.items() if first < end}
        revising |= begun
        waiting = {key: of for key, of in waiting.items() if key not in begun}
        if revising:
            wanted = pl.DataFrame([[*key] for key in revising], dict.fromkeys(names, pl.String), orient="row")
            open_keys = _decide(around, declared, at, end, wanted)
            revising = {key: last for key, last in revising.items() if key in open_keys or end < last + after_last}
        at = end


def _steps(
    around: Deciding, declared: Declared[Pattern], after: datetime, until: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """From one instant to another in steps of not too much time and not too many outcomes; without empty ones.

    With each step outcomes of `within` before and after are read, too: so none is much shorter for its time alone.
    """
    time = max(around.read_batch.time, step_of(declared.pattern.within))
    while after < until:
        firsts = [around.blocks.first_minute(after, until)]
        firsts.append(first_standing(around.cursor, declared, after, until))
        if not (begins := min((first for first in firsts if first is not None), default=None)):
            return
        begins = max(after, begins - _MICROSECOND)
        end = min(until, begins + time)
        rows = 0
        for _, minute, count in around.blocks.listed(begins, end):
            if rows and rows + count > around.read_batch.rows and minute - _MICROSECOND > begins:
                end = min(end, minute - _MICROSECOND)
                break
            rows += count
        yield after, end
        after = end


def _decide(
    around: Deciding, declared: Declared[Pattern], after: datetime, until: datetime, wanted: pl.DataFrame | None
) -> set[Key]:
    """Decide what begins after one instant and up to another, in the keys `wanted` or in all.

    Returns those in which what follows depends on what changed: where a match ends beyond.
    """
    pattern = declared.pattern
    names = [*pattern.partition_by]
    standing = standing_of(around.cursor, declared, after - pattern.within, until)
    first = _micros(after)
    in_part = {key: [match for match in of if match.started > first] for key, of in standing.items()}
    compared = keys_of(pattern, [key for key, of in in_part.items() if of])
    if wanted is not None:
        compared = compared.join(wanted, on=names, how="semi", nulls_equal=True)
    keys = candidates(declared, around.blocks, after, until, wanted)
    found: dict[Key, list[Found]] = {key: [] for key in compared.rows()}
    for some in _parts(around, declared, after, until, keys):
        for of in rows_of(declared, around.blocks, after, until, some):
            behind = _behind(standing.get(of.key, ()), first, pattern)
            if matched := [*found_in(of, pattern, behind, around.heartbeat)]:
                found[of.key] = matched
    changed = [change for key, now in found.items() for change in changes(in_part.get(key, ()), now)]
    append(around.cursor, declared, changed, around.frontier, around.read_batch.changes)
    earlier = {key: [match for match in of if match.started <= first] for key, of in standing.items()}
    found = {key: [*earlier.get(key, ()), *now] for key, now in found.items()}
    return _open_keys(standing, found, pattern, _micros(until))


def _parts(
    around: Deciding, declared: Declared[Pattern], after: datetime, until: datetime, keys: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """The keys, so many at a time that their outcomes are not too many."""
    if keys.is_empty():
        return
    within = declared.pattern.within
    total = sum(rows for _, _, rows in around.blocks.listed(after - within, until + within))
    count = min(len(keys), 1 + total // (5 * around.read_batch.rows))
    size = -(-len(keys) // count)
    yield from keys.iter_slices(size)


def _behind(standing: Sequence[Found], first: int, pattern: Pattern) -> tuple[int, int]:
    """Where the last match ends that begins up to an instant: the next one begins behind it."""
    if pattern.after_match is AfterMatch.NEXT_ROW:
        return (0, 0)
    return max((match.end for match in standing if match.started <= first), default=(0, 0))


def _open_keys(standing: Standing, found: Mapping[Key, Sequence[Found]], pattern: Pattern, until: int) -> set[Key]:
    if pattern.after_match is AfterMatch.NEXT_ROW:
        return set()
    ends = {
        key: [
            max((match.end for match in of if match.ended > until), default=None) for of in (standing.get(key, ()), now)
        ]
        for key, now in found.items()
    }
    return {key for key, (before, now) in ends.items() if before != now}


def _micros(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND
