"""Gauges of views: the first keys of those views that declare `gauges`, in the last minutes before the frontier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.queries.views import Whole, flat, floor_minute, measured_since, measured_until, rows_of
from jobs.runtime.postgres.totals import Sample, Totals
from jobs.settings.known_part import known_part
from jobs.settings.views import ViewConfig
from metering.views import Aggregate
from monitoring import metrics

WINDOW = timedelta(minutes=5)
_VIEWS = "SELECT config -> 'views' AS views FROM jobs WHERE job = %s"
# Sketches of the first keys alone are read: however many keys there are, no more is merged.
_PANES = """
WITH panes AS (
    SELECT panes.window_start, panes.keys, panes.measures
    FROM analytics_panes AS panes JOIN analytics_views USING (view_id)
    WHERE view = %(view)s AND version = %(version)s AND is_declared
      AND window_start >= %(start)s AND window_start < %(end)s
), first AS (
    SELECT keys FROM panes GROUP BY keys
    ORDER BY sum((measures ->> %(ranks)s)::numeric) DESC NULLS LAST, keys LIMIT %(top)s
)
SELECT panes.* FROM panes JOIN first USING (keys)
"""


@dataclass(frozen=True)
class ViewGauges:
    """The gauges of all views that are configured now; a view that has measured for less than WINDOW has none yet."""

    job: str

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[Sample]:
        """The samples, at most as many as `AnalyticsConfig` allows."""
        with cursor.connection.cursor(row_factory=dict_row) as rows:
            row = rows.execute(_VIEWS, [self.job]).fetchone()
            declared: Mapping[str, Any] = (row and row["views"]) or {}
            views = {name: known_part(ViewConfig, given)[0] for name, given in declared.items()}
            for name, config in views.items():
                yield from _samples(rows, name, config)


def _samples(rows: psycopg.Cursor[dict[str, Any]], name: str, config: ViewConfig) -> Iterator[Sample]:
    if config.gauges is None or (frontier := measured_until(rows)) is None:
        return
    view, end = config.view(name), floor_minute(frontier)
    start, since = end - WINDOW, measured_since(rows, view)
    if since is not None and start < since:
        return
    parameters = {
        "view": view.name,
        "version": view.version,
        "start": start,
        "end": end,
        "ranks": config.ranks_by,
        "top": config.gauges.top,
    }
    panes = rows.execute(_PANES, parameters).fetchall()
    tops = {measure.name for measure in view.measures if measure.aggregate is Aggregate.TOP}
    for row in rows_of(view, panes, Whole(start, end)):
        keys = ",".join(f"{key}={_written(row[key])}" for key in view.by)
        for measure, value in flat(view, row).items():
            is_measure = measure not in {"window_start", "window_end", *view.by, *tops}
            if is_measure and value is not None:
                yield metrics.VIEW, (view.name, keys, measure), float(value)


_ESCAPED = str.maketrans({character: f"\\{character}" for character in '\\,="'})


def _written(value: str | None) -> str:
    """A key's value in the label, so that no two keys are one series; nothing for null, and `""` for the empty text."""
    if value is None:
        return ""
    return value.translate(_ESCAPED) or '""'


def totals(job: str) -> tuple[Totals, ...]:
    """Gauges of `analytics_panes`."""
    return (ViewGauges(job),)
