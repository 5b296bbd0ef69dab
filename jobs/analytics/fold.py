"""What a batch of analytics changes, in the transaction that moves the position."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.fold_panes import fold_panes
from jobs.analytics.newest_panes import AddedPane, NewestPanes
from jobs.analytics.patterns.blocks import Block
from jobs.analytics.patterns.decide import READ_BATCH, ReadBatch
from jobs.analytics.patterns.fold import fold_patterns
from jobs.analytics.unread_minutes import UNREAD_SINCE
from jobs.analytics.watches.fold import fold_hits, pause_watches
from jobs.queries.views import ceil_minute
from jobs.runtime.errors import Refused
from jobs.runtime.job import Counts, Fold
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
EXPIRE = """
WITH removed AS (DELETE FROM analytics_panes WHERE window_start < %(before)s RETURNING view_id), began AS (
    UPDATE analytics_views SET since = greatest(since, %(before)s) WHERE view_id IN (SELECT view_id FROM removed)
)
SELECT EXISTS (SELECT FROM removed)
"""
"""A window that began before would lack outcomes."""


@dataclass(frozen=True)
class OfDriver:
    """What the driver itself made of a batch: to pass it through `staged` would cost more than to make it."""

    panes: Iterable[AddedPane] = ()
    blocks: Sequence[Block] = ()


def fold(
    cursor: psycopg.Cursor[Any], config: AnalyticsConfig, around: Fold, read_batch: ReadBatch = READ_BATCH
) -> Counts:
    """Merge panes into `analytics_panes` (`fold_panes`), and remove what is older than `keep_days` before the frontier:
    views begin with what is left. Then the same for patterns and watches.

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
    newest: NewestPanes = NewestPanes() if around.memory is None else around.memory
    if cursor.execute(FORGET, {"rebuilt": REBUILT}).rowcount:
        newest.forget_all()
    of_driver = OfDriver() if around.beside is None else around.beside
    fold_panes(cursor, views, newest, of_driver.panes)
    expires_before = None if around.frontier is None else ceil_minute(around.frontier - config.keeps)
    if expires_before is not None and cursor.execute(EXPIRE, {"before": expires_before}).fetchone() == (True,):
        newest.forget_before(expires_before)
    fold_patterns(cursor, config, around, of_driver.blocks, read_batch)
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
