"""Events of a type without a contract: kept, not billed, and counted by type, exactly.

A new version of a type, or a typo, looks like any other event until it is missing on a bill.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import psycopg

from jobs.ingestion.limits import LIMITS, Limits
from jobs.journal.families import family
from metering.vocabulary import Disposition

OTHERS = ""
"""Where the events of types are counted that are too many to be listed."""
COLUMNS = ["type", "events", "first_seen_at", "last_seen_at", "last_source"]

_LISTED = "SELECT type FROM unknown_types WHERE type = ANY (%s)"
_ROOM = "SELECT greatest(0, %s - count(*)) FROM unknown_types WHERE type <> ''"
_FOLD = """
INSERT INTO unknown_types AS old (type, events, first_seen_at, last_seen_at, last_source)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::text[]) AS batch
ON CONFLICT (type) DO UPDATE SET
    events = old.events + excluded.events,
    first_seen_at = least(old.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(old.last_seen_at, excluded.last_seen_at),
    last_source = excluded.last_source
"""


def of_unknown_type(rows: pl.DataFrame) -> pl.DataFrame:
    """The accepted events among journal rows whose type has no contract. Catalog rows have no type."""
    is_unknown = pl.col("type").is_not_null() & family().is_null()
    return rows.filter((pl.col("disposition") == Disposition.ACCEPTED) & is_unknown)


def types_of(events: pl.DataFrame) -> pl.DataFrame:
    """COLUMNS, a row per type of `of_unknown_type`, in order; `last_source` sent the last of them."""
    received_at = pl.col("received_at")
    counted = events.group_by("type").agg(
        pl.len().cast(pl.Int64).alias("events"),
        received_at.min().alias("first_seen_at"),
        received_at.max().alias("last_seen_at"),
        pl.col("source").sort_by(received_at).last().alias("last_source"),
    )
    return counted.sort("type").select(COLUMNS)


def added_types(types: pl.DataFrame) -> pl.DataFrame:
    """`types_of` several parts of the events, in their order → of all of them."""
    counted = types.group_by("type", maintain_order=True).agg(
        pl.sum("events"),
        pl.min("first_seen_at"),
        pl.max("last_seen_at"),
        pl.col("last_source").sort_by("last_seen_at", maintain_order=True).last(),
    )
    return counted.sort("type").select(COLUMNS)


def fold_types(cursor: psycopg.Cursor[Any], types: pl.DataFrame, limits: Limits = LIMITS) -> None:
    """Add rows of `types_of` to the table, once. The first types, up to the limit, have a row of their own."""
    listed = [name for (name,) in cursor.execute(_LISTED, [types["type"].to_list()]).fetchall()]
    (room,) = cursor.execute(_ROOM, [limits.types]).fetchone() or (0,)
    is_listed = pl.col("type").is_in(listed)
    has_room = ~is_listed & ((~is_listed).cum_sum() <= room)
    named = pl.when(is_listed | has_room).then("type").otherwise(pl.lit(OTHERS)).alias("type")
    rows = (
        types.with_columns(named)
        .group_by("type")
        .agg(
            pl.sum("events"),
            pl.min("first_seen_at"),
            pl.max("last_seen_at"),
            pl.col("last_source").sort_by("last_seen_at").last(),
        )
        .sort("type")
    )
    cursor.execute(_FOLD, [rows[name].to_list() for name in COLUMNS])
