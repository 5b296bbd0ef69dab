"""Sums of parts of usage → sums of all of it: what has the same key is added up."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from jobs.billing.staged import STAGED

ADDED = ("quantity", "metered_rows", "unmetered_rows", "unsound_rows")
GREATEST = ("unit_price", "event_time", "received_at")
LEAST = ("lowest_unit_price",)
KEY = tuple(name for name in STAGED.names if name not in (*ADDED, *GREATEST, *LEAST, "first_lsn"))
_PERIOD = ("account", "model", "meter", "currency", "day")
_IS_MEMBER = pl.col("aggregation").is_not_null()


def merged(sums: pa.Table) -> pa.Table:
    """Sums of parts of usage (STAGED), whichever rows each part had → STAGED with one row per KEY.

    All sums of an account must be in it: history that came after the close of its period has rows of its own only where
    the period has a correction, because only there its place matters.
    """
    is_corrected = (pl.col("is_correction") & _IS_MEMBER).any().over(_PERIOD)
    placed = pl.DataFrame(sums).with_columns(usage_lsn=pl.when(~_IS_MEMBER | is_corrected).then("usage_lsn"))
    return _added_up(placed)


def added_up(sums: pa.Table) -> pa.Table:
    """Sums of some parts of usage (STAGED) → what has the same KEY is added up, and all else stays as it is.

    `merged` makes the same of it as of the parts: a task may so add up what it has read.
    """
    return _added_up(pl.DataFrame(sums))


def _added_up(placed: pl.DataFrame) -> pa.Table:
    is_alone = pl.col("usage_lsn").is_not_null()
    metered_lsn = pl.col("first_lsn").filter(pl.col("metered_rows") > 0)
    added = (
        placed.filter(~is_alone)
        .group_by(KEY)
        .agg(
            pl.sum(*ADDED),
            pl.max(*GREATEST),
            pl.min(*LEAST),
            # As in the parts: the first row that changes the day, if there is one.
            first_lsn=pl.coalesce(metered_lsn.min(), pl.col("first_lsn").min()),
        )
    )
    return pa.concat_tables(
        [part.select(STAGED.names).to_arrow().cast(STAGED) for part in (placed.filter(is_alone), added)]
    )


def has_late_members(part: pa.Table) -> bool:
    """Whether a part has rows that came after the close of a period."""
    return bool(part["ends_at"].null_count < len(part))
