"""What views measure in windows: panes of a minute, merged as they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs.billing_progress import Database
from jobs.settings.known_part import known_part
from jobs.settings.views import WindowsConfig
from jobs.view_measures import Stored, merged, shown
from metering.views import OF_RANKS, RANKS, Aggregate, View, hopping, sessions, view_of
from metering.vocabulary import Job
from metering.windows import MINUTE

PANE_BYTES = 1_000
"""What a pane costs beside its measures, in about the time that so many bytes of sketches take."""
_DECLARED = "SELECT view, definition FROM analytics_views WHERE is_declared ORDER BY view"
_SINCE = "SELECT since FROM analytics_views WHERE view = %(view)s AND version = %(version)s AND is_declared"
_DEFAULTS = "SELECT windows FROM declared_windows"
_FRONTIER = "SELECT frontier FROM positions WHERE job = %(job)s"
_OF_VIEW = """
FROM analytics_panes AS panes JOIN analytics_views USING (view_id)
WHERE view = %(view)s AND version = %(version)s AND is_declared AND window_start >= %(start)s AND window_start < %(end)s
  AND (%(accounts)s::text[] IS NULL OR panes.account = ANY (%(accounts)s))
"""
_SELECT = f"SELECT panes.window_start, panes.keys, panes.measures {_OF_VIEW}"
_WEIGHT = f"SELECT sum({PANE_BYTES} + pg_column_size(panes.measures)) AS weight {_OF_VIEW}"
Row = dict[str, Any]
_Found = Iterator[tuple[datetime, datetime, list[datetime]]]


class UnknownView(ValueError):
    """Nothing was measured under this name."""


@dataclass(frozen=True)
class Hop:
    """Windows of `size` that begin each `hop`; the same: tumbling windows."""

    size: timedelta
    hop: timedelta
    margin: timedelta = timedelta()

    @property
    def reach(self) -> timedelta:
        """How far beyond what is asked for panes are read."""
        return self.size

    @property
    def overlap(self) -> int:
        """In how many windows each minute is, at most."""
        return -(-self.size // self.hop)

    def of(self, panes: Sequence[datetime]) -> _Found:
        """The windows of these panes."""
        return ((start, start + self.size, of_window) for start, of_window in hopping(panes, self.size, self.hop))


@dataclass(frozen=True)
class Sessions:
    """Windows that end where nothing happens for longer than `gap`, by key."""

    gap: timedelta
    reach: timedelta = timedelta()
    overlap: int = 1

    @property
    def margin(self) -> timedelta:
        """How long before its first pane a window may have begun."""
        return self.gap + MINUTE

    def of(self, panes: Sequence[datetime]) -> _Found:
        """The windows of these panes."""
        return sessions(panes, self.gap)


@dataclass(frozen=True)
class Whole:
    """One window: all that is asked for."""

    start: datetime
    end: datetime
    reach: timedelta = timedelta()
    margin: timedelta = timedelta()
    overlap: int = 1

    def of(self, panes: Sequence[datetime]) -> _Found:
        """That window, of any panes."""
        yield self.start, self.end, list(panes)


Windows = Hop | Sessions | Whole


@dataclass(frozen=True)
class Span:
    """The minutes [start, end) that are asked for, and whose; no account: all that the reader may see."""

    start: datetime
    end: datetime
    accounts: tuple[str, ...] = ()


def declared_views(database: Database) -> Mapping[str, View]:
    """The views that are measured, by name."""
    return {row["view"]: view_of(row["view"], row["definition"]) for row in database.execute(_DECLARED)}


def view_named(database: Database, name: str) -> View:
    """One of them. Raises UnknownView, which says what there is."""
    views = declared_views(database)
    if name in views:
        return views[name]
    if not views:
        raise UnknownView(
            "no view is measured yet: declare it as `views` in the configuration, start analytics with it, and wait "
            "for the first outcome"
        )
    raise UnknownView(f"{name} is no view that is measured; there are {', '.join(views)}")


def default_windows(database: Database) -> WindowsConfig:
    """`windows` of the configuration that analytics runs with."""
    row = database.execute(_DEFAULTS).fetchone()
    return known_part(WindowsConfig, (row and row["windows"]) or {})[0]


def measured_until(database: Database) -> datetime | None:
    """F of analytics: everything received before it is in its pane."""
    row = database.execute(_FRONTIER, {"job": Job.ANALYTICS.value}).fetchone()
    return row["frontier"] if row else None


def measured_since(database: Database, view: View) -> datetime | None:
    """The first minute of which a declared view has all outcomes; None: it measures all of usage."""
    row = database.execute(_SINCE, {"view": view.name, "version": view.version}).fetchone()
    return row["since"] if row else None


def columns_of(view: View) -> tuple[str, ...]:
    """The columns of `view_rows`, in order."""
    return ("window_start", "window_end", *view.by, *(measure.name for measure in view.measures))


def flat_columns(view: View) -> tuple[str, ...]:
    """Those of `flat`: of tables and CSV, with a column for each percentile."""
    split = {measure.name for measure in view.measures if measure.aggregate in OF_RANKS}
    return tuple(
        flat
        for name in columns_of(view)
        for flat in ([f"{name}_{rank}" for rank in RANKS] if name in split else [name])
    )


def flat(view: View, row: Row) -> Row:
    """A row of `view_rows` with one value in each column: a top is a text."""
    found = dict(row)
    for measure in view.measures:
        if measure.aggregate in OF_RANKS:
            percentiles = found.pop(measure.name) or {}
            found |= {f"{measure.name}_{rank}": percentiles.get(rank) for rank in RANKS}
        elif measure.aggregate is Aggregate.TOP:
            found[measure.name] = ", ".join(f"{top['value']} {top['count']}" for top in found[measure.name])
    return found


def bytes_merged(database: Database, view: View, windows: Windows, span: Span) -> int:
    """About how much `view_rows` merges: panes as they are stored, each once for each window that it is in."""
    row = database.execute(_WEIGHT, _parameters(view, windows, span)).fetchone()
    return int(row["weight"] or 0) * windows.overlap if row else 0


def view_rows(database: Database, view: View, windows: Windows, span: Span) -> list[Row]:
    """Rows with the columns `columns_of`, by window and key: each window with an outcome that overlaps the span.

    A window is shown whole, also where it begins before the span or ends after it; sessions are of the panes in it. One
    that began before the view measures, or may have, is left out: it would lack outcomes.
    """
    since = measured_since(database, view)
    return [
        row
        for row in rows_of(view, read_panes(database, view, windows, span), windows)
        if row["window_start"] < span.end
        and row["window_end"] > span.start
        and (since is None or row["window_start"] - windows.margin >= since)
    ]


def read_panes(database: Database, view: View, windows: Windows, span: Span) -> list[Row]:
    """The panes with `window_start`, `keys` and `measures` that windows of the span have."""
    return list(database.execute(_SELECT, _parameters(view, windows, span)))


def rows_of(view: View, panes: Iterable[Row], windows: Windows, by: Sequence[str] | None = None) -> list[Row]:
    """The rows of all windows of these panes; `by`: of these of the view's keys alone, in which the others merge."""
    names = view.by if by is None else tuple(by)
    places = [view.by.index(name) for name in names]
    by_keys: dict[tuple[str | None, ...], dict[datetime, list[Mapping[str, Stored]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for pane in panes:
        keys = tuple(pane["keys"][place] for place in places)
        by_keys[keys][pane["window_start"]].append(pane["measures"])
    rows = [
        {"window_start": start, "window_end": end, **dict(zip(names, keys, strict=True)), **_measured(view, found)}
        for keys, minutes in by_keys.items()
        for start, end, of_window in windows.of(sorted(minutes))
        if (found := [measures for minute in of_window for measures in minutes[minute]])
    ]
    return sorted(rows, key=lambda row: order(row["window_start"], (row[key] for key in names)))


def _measured(view: View, panes: Iterable[Mapping[str, Stored]]) -> Row:
    found = merged(view.measures, panes)
    return {measure.name: shown(measure, found.get(measure.name)) for measure in view.measures}


def order(window_start: datetime, keys: Iterable[str | None]) -> tuple[Any, ...]:
    """Where a row of `view_rows` stands: by window, then by its keys, nulls last."""
    return window_start, [(value is None, value or "") for value in keys]


def _parameters(view: View, windows: Windows, span: Span) -> dict[str, Any]:
    return {
        "view": view.name,
        "version": view.version,
        "start": span.start - windows.reach,
        "end": span.end + windows.reach,
        "accounts": list(span.accounts) or None,
    }


def floor_minute(instant: datetime) -> datetime:
    """The start of its minute."""
    return instant.replace(second=0, microsecond=0)


def ceil_minute(instant: datetime) -> datetime:
    """The start of the minute that does not begin before it."""
    floor = floor_minute(instant)
    return floor if floor == instant else floor + MINUTE
