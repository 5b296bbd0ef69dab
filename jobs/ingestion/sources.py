"""Who sends: per source and source epoch, when it was last heard and which sequence numbers arrived.

Every part of a row is a minimum, a maximum or a union, so a batch that comes twice or in another order leaves the same.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import psycopg

from jobs.streams import HEARTBEAT_SOURCE, Disposition, EventType

MOST_RANGES = 1_000
"""A source whose numbers leave more holes than this counts something else; its row would grow without limit."""

KEY = ["source", "source_epoch"]
COLUMNS = [
    *KEY,
    *("account", "account_seen_at", "first_seen_at", "last_seen_at", "last_event_time", "sequences", "unsequenced"),
]

FOLD = f"""
INSERT INTO sources AS old (
    source, source_epoch, account, account_seen_at, first_seen_at, last_seen_at, last_event_time, sequences, unsequenced
)
SELECT source, source_epoch, account, account_seen_at, first_seen_at, last_seen_at, last_event_time,
       sequences::int8multirange, unsequenced
FROM unnest(
    %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[],
    %s::text[], %s::boolean[]
) AS batch (
    source, source_epoch, account, account_seen_at, first_seen_at, last_seen_at, last_event_time, sequences, unsequenced
)
ORDER BY source COLLATE "C", source_epoch COLLATE "C"
ON CONFLICT (source, source_epoch) DO UPDATE SET
    account = CASE
        WHEN excluded.account IS NULL
          OR (old.account_seen_at, old.account COLLATE "C") >= (excluded.account_seen_at, excluded.account COLLATE "C")
        THEN old.account ELSE excluded.account
    END,
    account_seen_at = greatest(old.account_seen_at, excluded.account_seen_at),
    first_seen_at = least(old.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(old.last_seen_at, excluded.last_seen_at),
    last_event_time = greatest(old.last_event_time, excluded.last_event_time),
    (sequences, unsequenced) = (
        SELECT CASE WHEN too_many THEN '{{}}' ELSE numbers END, too_many
        FROM (
            SELECT numbers, old.unsequenced OR excluded.unsequenced
                            OR (SELECT count(*) FROM unnest(numbers)) > {MOST_RANGES} AS too_many
            FROM (SELECT old.sequences + excluded.sequences AS numbers) AS joined
        ) AS judged
    )
"""


def seen_sources(rows: pl.DataFrame) -> pl.DataFrame:
    """The sources of the accepted events among journal rows: one row per KEY, with the columns of `sources`.

    `sequences` is a multirange as text. Our own heartbeats are no source.
    """
    is_ours = (pl.col("source") == HEARTBEAT_SOURCE) & (pl.col("type") == EventType.HEARTBEAT)
    accepted = rows.filter(
        (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("source").is_not_null() & ~is_ours
    ).with_columns(pl.col("source_epoch").fill_null(""))
    received_at, account = pl.col("received_at"), pl.col("account")
    account_seen_at = received_at.filter(account.is_not_null()).max()
    heard = accepted.group_by(KEY).agg(
        account.filter(received_at == account_seen_at).max(),
        account_seen_at.alias("account_seen_at"),
        received_at.min().alias("first_seen_at"),
        received_at.max().alias("last_seen_at"),
        pl.col("event_time").max().alias("last_event_time"),
        _ranges().alias("ranges"),
    )
    unsequenced = pl.col("ranges").list.len() > MOST_RANGES
    kept = pl.when(~unsequenced).then(pl.col("ranges").list.join(",")).otherwise(pl.lit(""))
    text = pl.concat_str(pl.lit("{"), kept, pl.lit("}"))
    return heard.with_columns(text.alias("sequences"), unsequenced.alias("unsequenced")).select(COLUMNS).sort(KEY)


def _ranges() -> pl.Expr:
    """The runs of consecutive sequence numbers of a group, as the texts of ranges."""
    # Sorting within the groups costs a tenth of sorting the batch.
    numbers = pl.col("sequence").drop_nulls().sort()
    step = numbers.diff()
    first = numbers.filter(step.fill_null(2) > 1)
    last = numbers.filter(step.shift(-1).fill_null(2) > 1)
    return pl.format("[{},{}]", first, last)


def fold_sources(cursor: psycopg.Cursor[Any], seen: pl.DataFrame) -> None:
    """Add rows of `seen_sources` to the table, in one statement, in key order."""
    cursor.execute(FOLD, [seen[name].to_list() for name in COLUMNS])
