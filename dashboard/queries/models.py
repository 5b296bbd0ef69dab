"""What a declared view measures of each model in the last hour, and in the same hour last week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.queries.feed import Feed, feed_of
from jobs.queries.models import ModelQuery, model_rows
from jobs.queries.views import (
    Span,
    Whole,
    bytes_merged,
    declared_views,
    floor_minute,
    measured_since,
    read_panes,
    rows_of,
)
from metering.views import View
from metering.vocabulary import Job

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
BACK = (timedelta(), WEEK)
MODEL, ACCOUNT = "model", "account"
MAX_MERGED_BYTES = 32 * 2**20
"""Of the panes of an hour: a second of CPU at most."""
# By the view's own number the last pane is found at the end of the key.
_NEWEST = """
    SELECT max(window_start) AS newest FROM analytics_panes WHERE view_id = (
        SELECT view_id FROM analytics_views WHERE view = %(view)s AND version = %(version)s AND is_declared
    )
"""
Measured = Mapping[str, Any]
"""Measures by name, as `weir view` shows them."""


@dataclass(frozen=True)
class ModelsFilter:
    """Which view, by name (None: the first by model), and whose outcomes."""

    view: str | None = None
    account: str | None = None


@dataclass(frozen=True)
class ModelHour:
    """A model, `now` in the hour and `before` in the same hour last week; None: no outcome then.

    `amounts`: by currency what its usage of the hour costs; None where that depends on the month's total.
    """

    model: str | None
    now: Measured | None
    before: Measured | None
    amounts: Mapping[str | None, Decimal | None]


@dataclass(frozen=True)
class Hour:
    """[`start`, `end`), shorter than an hour where the view has measured for less; `total` is of all models.

    `is_compared`: the view had measured a week ago. `is_too_much`: more than a page may merge, so nothing was.
    """

    start: datetime
    end: datetime
    is_compared: bool
    models: tuple[ModelHour, ...] = ()
    total: Measured | None = None
    total_before: Measured | None = None
    is_too_much: bool = False


@dataclass(frozen=True)
class Models:
    """`names` are the views by model that the viewer may see; `view` is what is shown, None where there is none.

    `has_others`: there are views that are not by model, or of which the viewer may see nothing. `newest` is the last
    minute with an outcome that the viewer may see.
    """

    feed: Feed
    names: tuple[str, ...]
    has_others: bool
    view: View | None = None
    newest: datetime | None = None
    hour: Hour | None = None


def read_view_names(backend: Backend) -> tuple[str, ...]:
    """The views by model that the viewer may see."""
    with backend.snapshot() as cursor:
        return _by_model(backend, declared_views(cursor))


def read_models(backend: Backend, chosen: ModelsFilter, max_merged_bytes: int = MAX_MERGED_BYTES) -> Models:
    """The last hour up to the frontier of analytics, merged over all keys of the view but the model."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.ANALYTICS)
        declared = declared_views(cursor)
        names = _by_model(backend, declared)
        found = Models(feed, names, has_others=len(names) < len(declared))
        if not names:
            return found
        view = declared[chosen.view if chosen.view in names else names[0]]
        [newest] = cursor.execute(_NEWEST, {"view": view.name, "version": view.version}).fetchall()
        accounts = (chosen.account,) if chosen.account and ACCOUNT in view.by else ()
        hour = None
        if feed.frontier is not None:
            hour = _hour(cursor, view, floor_minute(feed.frontier), accounts, max_merged_bytes)
    return replace(found, view=view, newest=newest["newest"], hour=hour)


def _by_model(backend: Backend, declared: Mapping[str, View]) -> tuple[str, ...]:
    # Panes of no single account are for viewers of all of them.
    return tuple(
        name for name, view in declared.items() if MODEL in view.by and (backend.scope.is_all or ACCOUNT in view.by)
    )


def _hour(
    cursor: psycopg.Cursor[dict[str, Any]], view: View, end: datetime, accounts: tuple[str, ...], max_merged_bytes: int
) -> Hour | None:
    since = measured_since(cursor, view)
    start = max(end - HOUR, since or end - HOUR)
    if start >= end:
        return None
    hour = Hour(start, end, is_compared=since is None or since <= start - WEEK)
    spans = [Span(start - back, end - back, accounts) for back in (BACK[: 2 if hour.is_compared else 1])]
    ranges = [(Whole(span.start, span.end), span) for span in spans]
    if sum(bytes_merged(cursor, view, *of) for of in ranges) > max_merged_bytes:
        return replace(hour, is_too_much=True)
    panes = [(windows, read_panes(cursor, view, windows, span)) for windows, span in ranges]
    by_model = [{row[MODEL]: row for row in rows_of(view, rows, windows, (MODEL,))} for windows, rows in panes]
    totals = [next(iter(rows_of(view, rows, windows, ())), None) for windows, rows in panes]
    now, before = by_model[0], by_model[-1] if hour.is_compared else {}
    amounts = _amounts(cursor.connection, ModelQuery(start, end, accounts=accounts))
    models = tuple(
        ModelHour(model, now.get(model), before.get(model), amounts.get(model, {}))
        for model in dict.fromkeys((*now, *before))
    )
    return replace(hour, models=models, total=totals[0], total_before=totals[-1] if hour.is_compared else None)


def _amounts(
    connection: psycopg.Connection[Any], query: ModelQuery
) -> dict[str | None, dict[str | None, Decimal | None]]:
    found: dict[str | None, dict[str | None, Decimal | None]] = defaultdict(dict)
    for row in model_rows(connection, None, query):
        found[row["model"]][row["currency"]] = row["amount"]
    return found
