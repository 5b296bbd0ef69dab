"""Merges a batch's panes with the stored ones, in the transaction that moves the position."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.decide import READ_BATCH, ReadBatch
from jobs.analytics.patterns.fold import fold_patterns
from jobs.analytics.unread_minutes import UNREAD_SINCE
from jobs.analytics.watches.fold import fold_hits, pause_watches
from jobs.runtime.errors import Refused
from jobs.runtime.job import Counts, Fold
from jobs.runtime.postgres.sink import stage
from jobs.streams import INSTANT
from jobs.view_measures import merged, written
from metering.views import View

REBUILT = ""
"""The view of a row of `staged` that is no pane: all panes of its minute are in `staged` as a whole."""

DECLARE = f"""
INSERT INTO analytics_views (view, version, definition, first_position, since)
SELECT %(view)s, %(version)s, %(definition)s::jsonb, first.position, CASE WHEN first.position > 1 THEN
    {UNREAD_SINCE} END
FROM (SELECT coalesce(
    (SELECT next_position FROM positions WHERE job = 'analytics' AND input = 'usage'), 1) AS position) AS first
"""
"""In the minutes before `since` there are outcomes that it has not measured; in later ones there is none, as each
outcome is in a pane of each view that was declared, or has run past watches."""
WITHDRAW = "UPDATE analytics_views SET is_declared = false WHERE is_declared AND view = %s AND version = %s"
FORGET = """
DELETE FROM analytics_panes USING staged, analytics_views
WHERE staged.view = %(rebuilt)s AND analytics_panes.window_start = staged.window_start
  AND analytics_views.view_id = analytics_panes.view_id AND analytics_views.is_declared
"""
STORED = """
WITH added AS MATERIALIZED (
    SELECT view_id, view, window_start, sha256(jsonb_send(keys::jsonb)) AS keys_digest, measures
    FROM staged JOIN analytics_views USING (view, version) WHERE is_declared
)
SELECT view_id, window_start, encode(keys_digest, 'hex'), view, stored.measures::text, added.measures
FROM added JOIN analytics_panes AS stored USING (view_id, window_start, keys_digest)
"""
"""Digests are made first: in the condition of the join they may be made for each pair of rows."""
MERGED = pa.schema(
    [
        pa.field("view_id", pa.int32(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("measures", pa.string(), nullable=False),
    ]
)
MERGE = """
UPDATE analytics_panes SET measures = merged.measures::jsonb, updated_at = now()
FROM (SELECT view_id, window_start, decode(digest, 'hex') AS keys_digest, measures FROM merged OFFSET 0) AS merged
WHERE (analytics_panes.view_id, analytics_panes.window_start, analytics_panes.keys_digest)
    = (merged.view_id, merged.window_start, merged.keys_digest)
"""
"""All at once: a statement for each pane cost as much again as the pane."""
ADD = """
INSERT INTO analytics_panes (view_id, window_start, account, keys, measures)
SELECT analytics_views.view_id, staged.window_start, staged.account, staged.keys::jsonb, staged.measures::jsonb
FROM staged JOIN analytics_views USING (view, version)
WHERE analytics_views.is_declared AND staged.window_start >= coalesce(analytics_views.since, '-infinity')
ON CONFLICT (view_id, window_start, keys_digest) DO NOTHING
"""
EXPIRE = "DELETE FROM analytics_panes WHERE window_start < %s"
MERGED_AT_ONCE = 2_000
"""Stored panes. One with long sketches has tens of kilobytes and takes a millisecond, and late outcomes may touch every
minute that is kept: all at once were more than a driver holds, and took longer than Postgres lets a session be idle."""


def fold(
    cursor: psycopg.Cursor[Any], config: AnalyticsConfig, around: Fold, read_batch: ReadBatch = READ_BATCH
) -> Counts:
    """Merge `staged` into `analytics_panes`, and remove what is older than `keep_days` before the frontier; then the
    same for patterns and watches.

    A view that was not declared before is noted with the first lsn of usage and the first minute that it measures:
    panes of earlier minutes would lack outcomes, and are not stored. Counts nothing.

    Raises Refused with nothing to do: the position must not move past what would be measured.
    """
    views = {view.name: view for view in config.declared_views}
    if not config.measures_anything:
        raise Refused(
            "no view and no pattern is declared, and `watches` is off, so analytics has nothing to do: declare `views` "
            "or `patterns`, turn on `watches`, or do not start it"
        )
    _declare(cursor, views)
    cursor.execute(FORGET, {"rebuilt": REBUILT})
    _merge_stored(cursor, views)
    cursor.execute(ADD)
    expires_before = None if around.frontier is None else around.frontier - config.keeps
    if expires_before is not None:
        cursor.execute(EXPIRE, [expires_before])
    fold_patterns(cursor, config, around, read_batch)
    if config.watches:
        fold_hits(cursor, config.running, around.next_position, expires_before)
    else:
        pause_watches(cursor, expires_before)
    return {}


def is_expiry_due(around: Fold) -> bool:
    """Whether the frontier has entered another hour of UTC: then what is too old is removed also without a row."""
    return around.frontier is not None and (
        around.previous_frontier is None or _hour(around.previous_frontier) < _hour(around.frontier)
    )


def _merge_stored(cursor: psycopg.Cursor[Any], views: dict[str, View]) -> None:
    with cursor.connection.cursor("stored_panes") as stored_panes:
        stored_panes.execute(STORED)
        while found := stored_panes.fetchmany(MERGED_AT_ONCE):
            changed = [
                (view_id, start, digest, _merged(views[view], stored, added))
                for view_id, start, digest, view, stored, added in found
            ]
            stage(cursor, MERGED, pa.table([*zip(*changed, strict=True)], schema=MERGED), "merged")
            cursor.execute(MERGE)
            cursor.execute("DROP TABLE merged")
            if len(found) < MERGED_AT_ONCE:
                return


def _merged(view: View, stored: str, added: str) -> str:
    return written(merged(view.measures, (json.loads(stored), json.loads(added))))


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _declare(cursor: psycopg.Cursor[Any], views: dict[str, View]) -> None:
    known = set(cursor.execute("SELECT view, version FROM analytics_views WHERE is_declared").fetchall())
    declared = {(view.name, view.version): view.definition for view in views.values()}
    for gone in known - declared.keys():
        cursor.execute(WITHDRAW, gone)
    for view, version in sorted(declared.keys() - known):
        definition = json.dumps(declared[view, version])
        cursor.execute(DECLARE, {"view": view, "version": version, "definition": definition})
