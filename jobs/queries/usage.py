"""Usage: quantity and amount per window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from jobs.billing_progress import Progress, Row, billing_progress
from jobs.queries.account_periods import period_parameters
from jobs.queries.pages import Page, paged
from jobs.queries.periods import UTC_ZONE, Window, bounds, first_start_from
from jobs.queries.reading import Database, select
from jobs.queries.roll_up import JOINED, month_sql, part_parameters, read_parts
from jobs.queries.usage_keys import Key
from jobs.queries.usage_sources import near_days, of_days, of_windows
from metering import windows
from metering.lateness import window_state
from metering.pricing import BILLED_AS_PART

SUMMED = (
    *("quantity", "billed_quantity", "free_quantity", "tiered_quantity", "amount", "unpriced_quantity"),
    "unmetered_requests",
)
"""Of a window: what was reported, what of it has a price, what of that has the price 0, and what of it has tiers or
packages: the month's bill knows what that costs, and `amount` has what the rest costs. And what has no price; another
meter bills the rest. And how many requests did not report the meter."""


DETAILS = ("late_quantity", "corrected")
"""What of a window was received after its end, which only minutes and hours know; whether it changed after it had
closed."""


@dataclass(frozen=True)
class UsageQuery:
    """Which windows to list; `start` and `end` select by window start, None is unbounded.

    With `dimensions`, `filters` of some, or `own_calendars`, windows are days or months of each account's own calendar,
    and `zone` says nothing.
    """

    start: datetime | None = None
    end: datetime | None = None
    window: Window = Window.MINUTE
    group_by: tuple[Key, ...] = tuple(Key)
    dimensions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    zone: ZoneInfo = UTC_ZONE
    rolls_up: bool = False
    """Whether an account's usage is what all below it used, too: in each month those that it began with."""
    page: Page | None = None
    has_details: bool = False
    """Whether rows have DETAILS, too."""
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Only usage that has one of these values, by key or dimension."""
    own_calendars: bool = False
    """Also without dimensions."""

    @property
    def keys(self) -> list[str]:
        """What rows of one window differ in, in order."""
        other = ["is_other"] if self.dimensions else []
        return [*(key for key in Key if key in self.group_by), *self.dimensions, *other, "currency"]

    @property
    def selected(self) -> dict[str, str]:
        """What SQL calls each dimension, also as a parameter: a tag has longer names than a column, and other signs."""
        filtered = (name for name in self.filters if name not in tuple(Key))
        names = dict.fromkeys((*self.dimensions, *filtered))
        return {name: f"dimension_{number}" for number, name in enumerate(names)}

    @property
    def is_by_days(self) -> bool:
        """Whether the days of accounts are read, which alone have dimensions."""
        return self.own_calendars or bool(self.selected)

    @property
    def columns(self) -> list[str]:
        """The columns of the list, in order."""
        details = DETAILS if self.has_details else ()
        return ["window_start", "window_end", *self.keys, *SUMMED, *details, "state"]

    @property
    def window_columns(self) -> tuple[str, ...]:
        """What SQL calls a window."""
        return ("window_start", "window_end") if self.is_by_days else ("window_key",)

    @property
    def sql_keys(self) -> list[str]:
        """The columns that rows are ordered by: no two rows have the same values."""
        return [*self.window_columns, *(f'"{self.selected.get(key, key)}"' for key in self.keys)]

    def key_of(self, row: Row) -> tuple[Any, ...]:
        """The values of `sql_keys` in a row of the list: `after` of the next page."""
        start: datetime = row["window_start"]
        if self.is_by_days:
            window: tuple[Any, ...] = (start, row["window_end"])
        else:
            window = (start.astimezone(self.zone).date() if self.window in (Window.DAY, Window.MONTH) else start,)
        return (*window, *(row[key] for key in self.keys))


def usage_rows(database: Database, query: UsageQuery, progress: Progress | None = None) -> Iterator[Row]:
    """Rows with the keys `query.columns`, ordered by window, then by key; the money is summed by the database.

    A window longer than a minute closes by its own end, which is that of its least advanced minute: a day that
    still runs is open, whether or not its last minutes have usage yet. A row of no single meter is closed when
    every meter is. `progress`: what `billing_progress` says in this snapshot, where it is known already.
    """
    frontier, closed = progress or billing_progress(database)
    for start, end, row in _sums(database, query):
        # The views know what is closed under all graces, so no grace is read here.
        closed_until = closed.of(row.get("meter", ""))
        corrected = row["corrected"] if query.has_details else row.pop("corrected")
        state = window_state(
            windows.Window(start, end), None, frontier, corrected=corrected, closed_before=closed_until
        )
        yield {"window_start": start, "window_end": end, **row, "state": state.value}


def quantity_rows(database: Database, query: UsageQuery, *, in_windows: bool) -> Iterator[Row]:
    """Rows with `query.keys` but the currency, and `quantity`: of each window (`window_start, window_end`), or of all.

    What adds up to 0 is left out.
    """
    statement, parameters = _prepared(database, query)
    keys = [key for key in query.sql_keys if key != '"currency"']
    keys = keys if in_windows else keys[len(query.window_columns) :]
    by = "".join(f"{key}, " for key in keys)
    grouped = f"GROUP BY {', '.join(keys)}" if keys else ""
    summed = f"SELECT {by} sum(quantity) AS quantity FROM ({statement}) AS windows {grouped} HAVING sum(quantity) <> 0"
    summed, more = paged(summed, keys or ["quantity"], query.page)
    for row in select(database, summed, {**parameters, **more}):
        if in_windows and not query.is_by_days:
            start, end = bounds(query.window, row.pop("window_key"), query.zone)
            row |= {"window_start": start, "window_end": end}
        yield _with_names(query, row)


_LONGEST = {Window.DAY: timedelta(days=2), Window.MONTH: timedelta(days=33)}
"""No day or month of any calendar is as long."""


def cuts_a_window(database: Database, query: UsageQuery, edge: datetime) -> bool:
    """Whether `edge` lies within a day or month that has some of the usage of a query by the days of accounts.

    A sum from or to there would have all of that window, or nothing of it.
    """
    around = replace(query, start=edge - _LONGEST[query.window], end=edge, page=None)
    return any(row["window_end"] > edge for row in quantity_rows(database, around, in_windows=True))


def _sums(database: Database, query: UsageQuery) -> Iterator[tuple[datetime, datetime, Row]]:
    """Start and end of each window, and what is in it."""
    statement, parameters = _prepared(database, query)
    statement, more = paged(statement, query.sql_keys, query.page)
    for row in select(database, statement, {**parameters, **more}):
        if query.is_by_days:
            yield row.pop("window_start"), row.pop("window_end"), _with_names(query, row)
        else:
            yield *bounds(query.window, row.pop("window_key"), query.zone), row


def _with_names(query: UsageQuery, row: Row) -> Row:
    names = {column: name for name, column in query.selected.items()}
    return {names.get(column, column): value for column, value in row.items()}


def _prepared(database: Database, query: UsageQuery) -> tuple[str, dict[str, Any]]:
    """All rows of the query, and the parameters of the statement."""
    parameters: dict[str, Any] = {"start": query.start, "end": query.end, "accounts": list(query.accounts) or None}
    if query.rolls_up:
        parts = read_parts(database, query.accounts, None if query.is_by_days else query.zone.key)
        parameters |= part_parameters(parts)
        parameters["accounts"] = sorted({part.member for part in parts}) if query.accounts else None
    parameters |= {f"filter_{place}": list(values) for place, values in enumerate(query.filters.values())}
    if query.is_by_days:
        parameters |= period_parameters(database, query.window, parameters)
        parameters |= {column: name for name, column in query.selected.items()}
        return _statement(query, of_days(query.window)), parameters
    # Whole windows only: half an hour's usage under an hour's heading would be a wrong number.
    for name in ("start", "end"):
        if parameters[name] is not None:
            parameters[name] = first_start_from(query.window, parameters[name], query.zone)
    parameters |= {"zone": query.zone.key, **near_days(parameters["start"], parameters["end"])}
    if query.window in (Window.DAY, Window.MONTH):
        parameters |= period_parameters(database, query.window, parameters, query.zone)
    return _statement(query, of_windows(query.window)), parameters


def _statement(query: UsageQuery, source: str) -> str:
    keys = query.sql_keys
    by = ", ".join(str(place) for place in range(1, len(keys) + 1))
    if query.rolls_up:
        keys = ['coalesce(head, account) AS "account"' if key == '"account"' else key for key in keys]
    rolled = ""
    if query.rolls_up:
        month = "month" if query.is_by_days else month_sql(query.window)
        # Accounts outside the selected trees are not listed; without a selection each is in its own tree.
        rolled = JOINED.format(join="" if query.accounts else "LEFT", month=month)
    late = "sum(late_quantity) AS late_quantity," if query.has_details else ""
    kept = "".join(
        f" AND {_filtered(query, name)} = ANY (%(filter_{place})s)" for place, name in enumerate(query.filters)
    )
    columns = "".join(
        f", CASE WHEN is_other THEN 'other' ELSE dimensions ->> %({column})s::text END AS {column}"
        for column in query.selected.values()
    )
    return f"""
        SELECT {", ".join(keys)},
               sum(quantity) AS quantity,
               coalesce(sum(quantity) FILTER (WHERE price_version > {BILLED_AS_PART}), 0) AS billed_quantity,
               coalesce(sum(quantity) FILTER (WHERE price_version > {BILLED_AS_PART} AND unit_price = 0), 0)
                   AS free_quantity,
               coalesce(sum(quantity) FILTER (WHERE price_version > {BILLED_AS_PART} AND unit_price IS NULL), 0)
                   AS tiered_quantity,
               coalesce(sum(amount), 0) AS amount,
               coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced_quantity,
               sum(unmetered_requests)::bigint AS unmetered_requests,
               {late} bool_or(corrected) AS corrected
        FROM (SELECT *{columns} FROM ({source}) AS read) AS used {rolled}
        WHERE true {kept}
        GROUP BY {by}
        HAVING sum(quantity) <> 0 OR coalesce(sum(amount), 0) <> 0 OR sum(unmetered_requests) <> 0
        ORDER BY {by}
    """


def _filtered(query: UsageQuery, name: str) -> str:
    """What a filter compares. The rest of a day's combinations (`is_other`) has no value of any dimension."""
    column = query.selected.get(name)
    return f"dimensions ->> %({column})s::text" if column else f"used.{Key(name).value}"


_SPAN = """
    SELECT min(first_window) AS starts, max(last_window_end) AS ends FROM usage_days
    WHERE %(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s)
"""


def span_of(database: Database, accounts: Sequence[str]) -> tuple[datetime, datetime] | None:
    """From the first to the last minute of some accounts (none: of all); None without any usage."""
    row = database.execute(_SPAN, {"accounts": list(accounts) or None}).fetchone()
    return (row["starts"], row["ends"]) if row and row["starts"] else None
