"""Staged blocks → `pattern_outcomes`, and which outcomes came or went that final matches may depend on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.patterns.blocks import AT, LSN, OUTCOMES, Block, columns_of, read_block
from jobs.analytics.patterns.conditions import may_stand, starts_look_back
from jobs.analytics.patterns.declared import Declared
from jobs.analytics.patterns.matches import keys_of, standing_of
from jobs.analytics.patterns.reading import BATCH_BLOCKS, Blocks, seen_by
from metering.patterns.burst import AnyPattern
from metering.patterns.pattern import Pattern
from metering.windows import MINUTE

_ADD = "INSERT INTO pattern_outcomes (minute, rows, outcomes) VALUES (%s, %s, %b) RETURNING block_id, minute"
_ADD_STAGED = f"""
INSERT INTO pattern_outcomes (minute, rows, outcomes)
SELECT window_start, version::int, decode(measures, 'base64') FROM staged
WHERE view = '{OUTCOMES}' AND window_start >= %s
ORDER BY window_start, measures
RETURNING block_id, minute
"""
# Of a minute that is made again all outcomes are staged.
_REPLACED = """
DELETE FROM pattern_outcomes USING staged AS rebuilt
WHERE rebuilt.view = '' AND minute = rebuilt.window_start AND minute >= %s
RETURNING minute, outcomes
"""
_IS_MADE_AGAIN = "SELECT EXISTS (SELECT FROM staged WHERE view = '')"
_EXPIRE = "DELETE FROM pattern_outcomes WHERE minute <= %s"


@dataclass(frozen=True)
class Stored:
    """What a batch has stored: blocks by minute that were added, and the outcomes of those that they replace."""

    added: Sequence[tuple[int, datetime]]
    replaced: Sequence[tuple[datetime, pl.DataFrame]]


def store(
    cursor: psycopg.Cursor[Any], first: datetime, of_driver: Iterable[Block], batch_blocks: int = BATCH_BLOCKS
) -> Stored:
    """Store blocks that the driver made and those in `staged`, of minutes from `first` on; what is older changes
    nothing.
    """
    replaced: list[tuple[datetime, pl.DataFrame]] = []
    row = cursor.execute(_IS_MADE_AGAIN).fetchone()
    if row is not None and row[0]:
        contents = cursor.execute(_REPLACED, [first], binary=True).fetchall()
        for place in range(0, len(contents), batch_blocks):
            replaced += [(minute, read_block(content)) for minute, content in contents[place : place + batch_blocks]]
            cursor.execute("SELECT")
    added = cursor.execute(_ADD_STAGED, [first]).fetchall()
    for block in of_driver:
        if block.minute >= first:
            added += cursor.execute(_ADD, block).fetchall()
    return Stored(added, replaced)


def changed(declared: Declared[AnyPattern], stored: Stored, blocks: Blocks) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Of a pattern, the outcomes at or before `final_until` that came, and those that went: keys, AT, LSN, columns."""
    until = declared.final_until
    late = [block_id for block_id, minute in stored.added if minute <= until]
    came = seen_by(declared, blocks.get(late), until=until)
    gone = seen_by(declared, [frame for minute, frame in stored.replaced if minute <= until], until=until)
    if came.is_empty() or gone.is_empty():
        return came, gone
    names = [AT, LSN, *columns_of([declared.pattern])]
    return (
        came.join(gone, on=names, how="anti", nulls_equal=True),
        gone.join(came, on=names, how="anti", nulls_equal=True),
    )


def keys_to_revise(
    cursor: psycopg.Cursor[Any], declared: Declared[Pattern], came: pl.DataFrame, gone: pl.DataFrame
) -> pl.DataFrame:
    """`partition_by`, and the `first` and `last` time at which what came or went may change final matches.

    An outcome that can stand for no variable is in no match, and can only break one that stands around it. Unless the
    first outcome of a match looks back: then it may follow on this one.
    """
    pattern = declared.pattern
    keys = [*pattern.partition_by]
    if not came.is_empty() and not starts_look_back(pattern):
        stands = may_stand(pattern)
        idle = came.filter(~stands)
        came = came.filter(stands)
        if not idle.is_empty():
            first, last = idle.select(pl.col(AT).min().alias("first"), pl.col(AT).max().alias("last")).row(0)
            around = keys_of(pattern, standing_of(cursor, declared, first - pattern.within - MINUTE, last))
            came = pl.concat([came, idle.join(around, on=keys, how="semi", nulls_equal=True)])
    both = pl.concat([came.select(*keys, AT), gone.select(*keys, AT)])
    return both.group_by(keys).agg(first=pl.col(AT).min(), last=pl.col(AT).max()).sort("first", *keys)


def expire(cursor: psycopg.Cursor[Any], before: datetime) -> None:
    """Remove minutes that end up to an instant: no match reads them any more that may still be revised."""
    cursor.execute(_EXPIRE, [before - MINUTE])
