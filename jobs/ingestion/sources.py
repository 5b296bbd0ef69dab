"""Sources: per source and source epoch, when it was first and last heard, and its sequence numbers (`sequences`).

Times are minima and maxima, so a batch that comes twice or in another order leaves the same state.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import psycopg

from jobs.ingestion.limits import LIMITS, Limits
from jobs.ingestion.sequences import KEY, RUNS, extended, instant_of_minute, minute_of
from jobs.streams import HEARTBEAT_SOURCE
from metering.vocabulary import Disposition, EventType

COLUMNS = [
    *KEY,
    *("account", "account_seen_at", "first_seen_at", "last_seen_at", "last_event_time"),
]

FOLD = """
INSERT INTO sources AS old (
    source, source_epoch, account, account_seen_at, first_seen_at, last_seen_at, last_event_time
)
SELECT * FROM unnest(
    %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[]
) AS batch (source, source_epoch, account, account_seen_at, first_seen_at, last_seen_at, last_event_time)
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
    last_event_time = greatest(old.last_event_time, excluded.last_event_time)
"""

LISTED = """
SELECT source, source_epoch FROM sources JOIN unnest(%s::text[], %s::text[]) AS batch (source, source_epoch)
    USING (source, source_epoch)
"""

NEW_BY_HOUR = """
SELECT date_trunc('hour', first_seen_at, 'UTC'), count(*) FROM sources WHERE first_seen_at >= %s GROUP BY 1
"""

KNOWN = """
SELECT source, source_epoch, lower(part), upper(part) - 1, counted_until
FROM sources CROSS JOIN LATERAL unnest(sequences) AS part
JOIN unnest(%s::text[], %s::text[]) AS batch (source, source_epoch) USING (source, source_epoch)
"""

COUNT = """
UPDATE sources AS old SET
    sequences = CASE WHEN batch.unsequenced THEN '{}' ELSE old.sequences + batch.sequences::int8multirange END,
    unsequenced = batch.unsequenced,
    counted_until = %s
FROM unnest(%s::text[], %s::text[], %s::text[], %s::boolean[]) AS batch (source, source_epoch, sequences, unsequenced)
WHERE (old.source, old.source_epoch) = (batch.source, batch.source_epoch) AND NOT old.unsequenced
"""

START_OVER = """
UPDATE sources AS old SET sequences = '{}', counted_until = NULL
FROM unnest(%s::text[], %s::text[]) AS batch (source, source_epoch)
WHERE (old.source, old.source_epoch) = (batch.source, batch.source_epoch) AND NOT old.unsequenced
"""


def events_of_sources(rows: pl.DataFrame) -> pl.DataFrame:
    """The accepted events among journal rows that a source sent; our own heartbeats are no source."""
    is_ours = (pl.col("source") == HEARTBEAT_SOURCE) & (pl.col("type") == EventType.HEARTBEAT)
    return rows.filter(
        (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("source").is_not_null() & ~is_ours
    ).with_columns(pl.col("source_epoch").fill_null(""))


def seen_sources(rows: pl.DataFrame) -> pl.DataFrame:
    """The sources of the accepted events among journal rows: a row per KEY: COLUMNS, `events`."""
    accepted = events_of_sources(rows)
    received_at, account = pl.col("received_at"), pl.col("account")
    account_seen_at = received_at.filter(account.is_not_null()).max()
    return (
        accepted.group_by(KEY)
        .agg(
            account.filter(received_at == account_seen_at).max(),
            account_seen_at.alias("account_seen_at"),
            received_at.min().alias("first_seen_at"),
            received_at.max().alias("last_seen_at"),
            pl.col("event_time").max().alias("last_event_time"),
            pl.len().cast(pl.Int64).alias("events"),
        )
        .select(*COLUMNS, "events")
        .sort(KEY)
    )


def added_sources(seen: pl.DataFrame) -> pl.DataFrame:
    """`seen_sources` of several parts of the rows → of all of them."""
    seen_at = pl.col("account_seen_at")
    return (
        seen.group_by(KEY)
        .agg(
            pl.col("account").filter(seen_at == seen_at.max()).max(),
            seen_at.max(),
            pl.min("first_seen_at"),
            pl.max("last_seen_at", "last_event_time"),
            pl.sum("events"),
        )
        .select(*COLUMNS, "events")
        .sort(KEY)
    )


def within_limits(cursor: psycopg.Cursor[Any], seen: pl.DataFrame, limits: Limits = LIMITS) -> pl.DataFrame:
    """The rows of `seen_sources` that have a row in the table, or may get one: a limited number of new ones an hour.

    A flood of names would fill the table, its page and its alerts for a day. An unlisted source may be added
    in the next hour; its events are metered all the same.
    """
    listed = pl.DataFrame(
        cursor.execute(LISTED, [seen[name].to_list() for name in KEY]).fetchall(),
        schema=dict.fromkeys(KEY, pl.String),
        orient="row",
    )
    new = seen.join(listed, on=KEY, how="anti")
    if new.is_empty():
        return seen
    new = new.sort("first_seen_at", *KEY).with_columns(hour=pl.col("first_seen_at").dt.truncate("1h"))
    taken = pl.DataFrame(
        cursor.execute(NEW_BY_HOUR, [new["hour"].min()]).fetchall(),
        schema={"hour": pl.Datetime("us", "UTC"), "taken": pl.Int64},
        orient="row",
    )
    place = pl.int_range(pl.len()).over("hour") + pl.col("taken").fill_null(0)
    room = new.join(taken, on="hour", how="left", maintain_order="left").filter(place < limits.new_sources)
    return pl.concat([seen.join(listed, on=KEY, how="semi"), room.select(seen.columns)]).sort(KEY)


def fold_sources(cursor: psycopg.Cursor[Any], seen: pl.DataFrame) -> None:
    """Add rows of `seen_sources` to the table, in one statement, in key order."""
    cursor.execute(FOLD, [seen[name].to_list() for name in COLUMNS])


def fold_sequences(cursor: psycopg.Cursor[Any], runs: pl.DataFrame, until: int, limits: Limits = LIMITS) -> None:
    """Add the numbers of minutes that are over (`sequences.RUNS`, all before the minute `until`) to their sources."""
    keys = runs.select(KEY).unique().sort(KEY)
    found = cursor.execute(KNOWN, [keys[name].to_list() for name in KEY]).fetchall()
    known = pl.DataFrame(
        [
            (source, epoch, minute_of(counted) - 1 if counted else 0, low, high)
            for source, epoch, low, high, counted in found
        ],
        schema=RUNS,
        orient="row",
    )
    new = extended(known, runs, until, limits)
    cursor.execute(COUNT, [instant_of_minute(until), *(new[name].to_list() for name in new.columns)])


def restart_sequences(cursor: psycopg.Cursor[Any], runs: pl.DataFrame) -> None:
    """Forget the numbers of these sources (`sequences.RUNS`): what comes next is their first."""
    keys = runs.select(KEY).unique().sort(KEY)
    cursor.execute(START_OVER, [keys[name].to_list() for name in KEY])
