"""What the pages read: one read-only transaction per question, with a time limit, stamped by the database's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import dict_row

from monitoring.metrics import JOBS

STATEMENT_TIMEOUT_SECONDS = 5
CONNECT_TIMEOUT_SECONDS = 3
MOST_ROWS = 2_000
"""A page with more rows helps nobody and would slow down every viewer's browser."""


@dataclass(frozen=True)
class Application:
    """What an application last said of itself. None: not known (yet)."""

    job: str
    state: str
    starts: int
    reported_at: datetime
    records_behind: int | None
    seconds_behind: float | None
    last_batch_at: datetime | None
    last_batch_records: int | None
    last_batch_ms: int | None
    frontier: datetime | None


@dataclass(frozen=True)
class Applications:
    """The applications that ever ran, by name, at `read_at`."""

    read_at: datetime
    by_job: dict[str, Application]


@dataclass(frozen=True)
class LiveWindow:
    """One account's usage in one currency, in a minute that may still change."""

    window_start: datetime
    window_end: datetime
    state: str
    account: str
    currency: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    amount: Decimal
    unpriced_quantity: int


@dataclass(frozen=True)
class LiveWindows:
    """The windows that are open or closing at `read_at`, newest first, and how far billing was.

    `billing_reported_at` is None when billing never ran, `last_window_start` when there never was any usage.
    """

    read_at: datetime
    windows: tuple[LiveWindow, ...]
    is_cut: bool
    frontier: datetime | None
    grace: timedelta | None
    billing_reported_at: datetime | None
    last_window_start: datetime | None


_APPLICATIONS = "SELECT job, state, epoch, updated_at, progress FROM jobs WHERE job = ANY (%s)"

_BILLING = """
    SELECT now() AS read_at, frontier, updated_at AS billing_reported_at,
           make_interval(secs => (config ->> 'grace_seconds')::float8) AS grace,
           (SELECT max(window_start) FROM usage_windows) AS last_window_start
    FROM (VALUES ('billing', 'usage')) AS wanted (job, input)
    LEFT JOIN (SELECT job, config, updated_at FROM jobs) AS billing USING (job)
    LEFT JOIN (SELECT job, input, frontier FROM positions) AS folded USING (job, input)
"""

_LIVE_WINDOWS = """
    SELECT window_start, window_end, account, currency,
           CASE WHEN window_end > %(frontier)s THEN 'open' ELSE 'closing' END AS state,
           coalesce(sum(quantity) FILTER (WHERE meter = 'requests'), 0)::bigint AS requests,
           coalesce(sum(quantity) FILTER (WHERE meter = 'input_tokens'), 0)::bigint AS input_tokens,
           coalesce(sum(quantity) FILTER (WHERE meter = 'output_tokens'), 0)::bigint AS output_tokens,
           coalesce(sum(quantity) FILTER (WHERE meter = 'cached_tokens'), 0)::bigint AS cached_tokens,
           coalesce(sum(amount), 0) AS amount,
           coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0)::bigint AS unpriced_quantity
    FROM usage_windows
    WHERE window_start > %(frontier)s - %(grace)s - interval '1 minute'
    GROUP BY window_start, window_end, account, currency
    HAVING bool_or(quantity <> 0)
    ORDER BY window_start DESC, account, currency
    LIMIT %(limit)s
"""


def read_applications(postgres_url: str) -> Applications:
    """What each application last reported. Raises psycopg.Error when the database does not answer in time."""
    with _transaction(postgres_url) as cursor:
        rows = cursor.execute(_APPLICATIONS, [list(JOBS)]).fetchall()
        clock = cursor.execute("SELECT now() AS read_at").fetchall()[0]
    return Applications(clock["read_at"], {row["job"]: _application(row) for row in rows})


def read_live_windows(postgres_url: str) -> LiveWindows:
    """The minutes that billing has not closed. Raises psycopg.Error when the database does not answer in time."""
    with _transaction(postgres_url) as cursor:
        billing = cursor.execute(_BILLING).fetchall()[0]
        rows: list[dict[str, Any]] = []
        if billing["frontier"] is not None and billing["grace"] is not None:
            rows = cursor.execute(_LIVE_WINDOWS, {**billing, "limit": MOST_ROWS + 1}).fetchall()
    windows = tuple(LiveWindow(**row) for row in rows[:MOST_ROWS])
    return LiveWindows(**billing, windows=windows, is_cut=len(rows) > MOST_ROWS)


@contextmanager
def _transaction(postgres_url: str) -> Iterator[psycopg.Cursor[Any]]:
    """A read-only transaction that sees one snapshot, in UTC."""
    connect_timeout = CONNECT_TIMEOUT_SECONDS
    with psycopg.connect(
        postgres_url, connect_timeout=connect_timeout, application_name="weir dashboard"
    ) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT set_config('TimeZone', 'UTC', true)")
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{STATEMENT_TIMEOUT_SECONDS}s"])
            yield cursor


def _application(row: dict[str, Any]) -> Application:
    progress = row["progress"]
    return Application(
        job=row["job"],
        state=row["state"],
        starts=row["epoch"],
        reported_at=row["updated_at"],
        records_behind=progress.get("records_behind"),
        seconds_behind=progress.get("seconds_behind"),
        last_batch_at=_instant(progress.get("last_batch_at")),
        last_batch_records=progress.get("last_batch_records"),
        last_batch_ms=progress.get("last_batch_ms"),
        frontier=_instant(progress.get("frontier")),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
