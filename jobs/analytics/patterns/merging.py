"""Small blocks of a minute that is over become one: to open a block takes as long as to read 10,000 outcomes.

Each batch adds a block for each minute of which it has outcomes. A pattern opens those of a minute many times, a burst
once for each minute of its hour.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.patterns.blocks import MAX_ROWS, written
from jobs.analytics.patterns.reading import Blocks
from metering.windows import MINUTE

MIN_BLOCKS = 8
"""Fewer stay: what is merged is written once more."""
LATE = timedelta(hours=1)
"""Outcomes that come later than that stay in blocks of their own: few minutes have any."""
_SMALL = """
SELECT minute, array_agg(block_id ORDER BY block_id) FROM pattern_outcomes
WHERE minute >= %(first)s AND minute <= %(last)s
GROUP BY minute HAVING count(*) >= %(blocks)s AND sum(rows) <= %(rows)s
ORDER BY minute
"""
_ADD = "INSERT INTO pattern_outcomes (minute, rows, outcomes) VALUES (%s, %s, %s)"
_REMOVE = "DELETE FROM pattern_outcomes WHERE block_id = ANY (%s)"


def merge_blocks(cursor: psycopg.Cursor[Any], blocks: Blocks, since: datetime, frontier: datetime) -> None:
    """Make one block of those of each minute that is over, where they are many and small, from LATE before `since` on.

    `since`: up to where this was done before. Outcomes stay in the order of their blocks: of one that is stored twice
    the later one counts. What such a block lacks of a column is null, as where a pattern reads it.
    """
    bounds = {"first": since - LATE, "last": frontier - MINUTE, "blocks": MIN_BLOCKS, "rows": MAX_ROWS}
    for minute, numbers in cursor.execute(_SMALL, bounds).fetchall():
        merged = pl.concat(blocks.get(numbers), how="diagonal")
        cursor.execute(_REMOVE, [numbers])
        cursor.execute(_ADD, [minute, len(merged), written(merged)], binary=True)
