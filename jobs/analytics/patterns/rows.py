"""Which keys may have a match, as far as columns say, and their outcomes in order with what each can stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jobs.analytics.patterns.blocks import AT, LSN, columns_of
from jobs.analytics.patterns.conditions import GAP, before, may_stand, may_start, reads_before, variables
from jobs.analytics.patterns.declared import Declared
from jobs.analytics.patterns.matches import Key
from jobs.analytics.patterns.reading import Blocks, seen_by
from metering.patterns.matcher import MAX_ROWS, Program
from metering.patterns.pattern import Pattern

_KEY, _VARIABLES = "#key", "#variables"


@dataclass(frozen=True)
class OfKey:
    """The outcomes of a key in order: AT, LSN, columns; when each occurred in microseconds since the epoch, what it can
    stand for as bits, and where a match may begin.
    """

    key: Key
    outcomes: pl.DataFrame
    micros: NDArray[np.int64]
    variables: NDArray[np.uint32]
    starts: NDArray[np.int64]


def candidates(
    declared: Declared[Pattern], blocks: Blocks, after: datetime, until: datetime, wanted: pl.DataFrame | None
) -> pl.DataFrame:
    """Keys in which a match may begin after one instant and up to another, of those `wanted` or of all: they have an
    outcome that may be the first, and as many that may be in a match as the shortest match has.
    """
    pattern, keys = declared.pattern, [*declared.pattern.partition_by]
    parts = []
    for frames in blocks.read(after, until + pattern.within):
        rows = seen_by(declared, frames, after, until + pattern.within).filter(may_stand(pattern))
        if wanted is not None:
            rows = rows.join(wanted, on=keys, how="semi", nulls_equal=True)
        begins = (pl.col(AT) <= until) & may_start(pattern)
        parts.append(rows.group_by(keys).agg(begins=begins.any(), stand=pl.len()))
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(keys, pl.String))
    counted = pl.concat(parts).group_by(keys).agg(pl.any("begins"), pl.sum("stand"))
    return counted.filter("begins", pl.col("stand") >= len(pattern.program.openings)).select(keys)


def rows_of(
    declared: Declared[Pattern], blocks: Blocks, after: datetime, until: datetime, keys: pl.DataFrame
) -> Iterator[OfKey]:
    """The outcomes of these keys that decide what begins after one instant and up to another, where anything may begin.

    Before, where conditions read it, the last of each key; after `until` at most MAX_ROWS: no match has more.
    """
    pattern = declared.pattern
    rows = _ordered(_read(declared, blocks, after, until, keys), pattern)
    micros = rows[AT].dt.epoch("us").to_numpy()
    bits, number = rows[_VARIABLES].to_numpy(), rows[_KEY].to_numpy()
    first, last = (pl.Series([at]).dt.epoch("us").item() for at in (after, until))
    starts = np.flatnonzero((micros > first) & (micros <= last))
    starts = _opening(pattern.program, starts, bits, number)
    names = [*pattern.partition_by]
    edges = [*np.flatnonzero(np.r_[True, number[1:] != number[:-1]][: len(number)]), len(number)]
    bounds = np.searchsorted(starts, edges)
    outcomes = rows.select(AT, LSN, *columns_of([pattern]))
    for place, (low, high) in enumerate(pairwise(edges)):
        of = starts[bounds[place] : bounds[place + 1]]
        if len(of):
            key = outcomes.select(names).row(low)
            yield OfKey(key, outcomes.slice(low, high - low), micros[low:high], bits[low:high], of - low)


def _read(
    declared: Declared[Pattern], blocks: Blocks, after: datetime, until: datetime, keys: pl.DataFrame
) -> pl.DataFrame:
    names = [*declared.pattern.partition_by]
    begins = after - declared.pattern.within if reads_before(declared.pattern) else after
    end = until + declared.pattern.within
    found = seen_by(declared, [])
    for frames in blocks.read(begins, end):
        part = seen_by(declared, frames, begins, end).join(keys, on=names, how="semi", nulls_equal=True)
        found = pl.concat([found, part])
        if begins < after and not (earlier := found.filter(pl.col(AT) <= after)).is_empty():
            last = earlier.sort(AT, LSN, maintain_order=True).group_by(names, maintain_order=True).tail(1)
            found = pl.concat([last.select(found.columns), found.filter(pl.col(AT) > after)])
        if (later := found.filter(pl.col(AT) > until)).height > MAX_ROWS:
            # Blocks come by minute: what is beyond so many outcomes of a key, each counted once, stays there.
            later = later.unique([*names, AT, LSN], keep="last", maintain_order=True)
            place = pl.int_range(pl.len()).over([*names], order_by=[AT, LSN])
            found = pl.concat([found.filter(pl.col(AT) <= until), later.filter(place <= MAX_ROWS)])
    return found


def _ordered(rows: pl.DataFrame, pattern: Pattern) -> pl.DataFrame:
    """By key and then in order, each outcome once, with the number of its key and its variables."""
    names = [*pattern.partition_by]
    rest = [name for name in rows.columns if name not in names]
    # Of an outcome that is stored twice the later block comes later.
    grouped = rows.sort(AT, LSN, maintain_order=True).group_by(names, maintain_order=True).agg(rest)
    ordered = grouped.with_row_index(_KEY).explode(rest) if len(grouped) else grouped.with_row_index(_KEY)
    same = [pl.col(name) == pl.col(name).shift(-1) for name in (_KEY, AT, LSN)]
    ordered = ordered.filter(~pl.all_horizontal(same).fill_null(value=False))
    follows = (pl.col(_KEY) == pl.col(_KEY).shift()) & (pl.col(AT) - pl.col(AT).shift() <= pattern.within)
    looked_at = {GAP: pl.col(AT) - pl.col(AT).shift()}
    looked_at |= {before(name): pl.col(name).shift() for name in columns_of([pattern])}
    if reads_before(pattern):
        ordered = ordered.with_columns(pl.when(follows).then(of).alias(name) for name, of in looked_at.items())
    return ordered.with_columns(variables(pattern).alias(_VARIABLES))


def _opening(
    program: Program, starts: NDArray[np.int64], bits: NDArray[np.uint32], number: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Those of these rows with which, and with as many after it as any match has, one may begin."""
    for place, taken in enumerate(program.openings):
        if not len(starts):
            break
        starts = starts[starts + place < len(bits)]
        is_same = number[starts + place] == number[starts]
        starts = starts[is_same & (bits[starts + place] & np.uint32(taken) != 0)]
    return starts
