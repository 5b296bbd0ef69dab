"""Rows that tests write to a metering database as the applications would."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from jobs.runtime.postgres.totals import Totals, exits_of

MINUTE = timedelta(minutes=1)
CONFIGS = {"billing": {"grace_seconds": 300}, "sessionization": {"session_gap_seconds": 1800}}
INPUTS = {"analytics": "usage", "billing": "usage", "sessionization": "journal"}


def write(database: str, table: str, *rows: dict[str, Any]) -> None:
    """Insert `rows`, column by column name, in one transaction."""
    with psycopg.connect(database) as connection:
        for row in rows:
            names = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(["%s"] * len(row))
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({values})", list(row.values()))


# Of accounts whose zone never changed.
_DAYS = """
    INSERT INTO usage_days (
        account, day, model, meter, currency, price_version, quantity, unit_price, first_window, last_window_end,
        corrected
    )
    SELECT usage_windows.account, (window_start AT TIME ZONE coalesce(name, 'UTC'))::date, model, meter, currency,
           price_version, sum(quantity), max(unit_price), min(window_start), max(window_end), bool_or(corrected)
    FROM usage_windows
    LEFT JOIN (SELECT account, name FROM catalog.account_zones JOIN pg_timezone_names ON name = timezone) AS zones
        USING (account)
    GROUP BY 1, 2, 3, 4, 5, 6
"""


def write_windows(database: str, *rows: dict[str, Any]) -> None:
    """Insert minutes of usage, and have the days of all that are there: of accounts of one zone each."""
    write(database, "usage_windows", *rows)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM usage_days")
        connection.execute(_DAYS)


def progress(
    database: str,
    job: str,
    frontier: datetime | None,
    *,
    state: str = "running",
    updated_at: datetime | None = None,
    report: Mapping[str, Any] | None = None,
) -> None:
    """Let `job` have reported (`updated_at`: now) and, where it keeps a position, have reached `frontier`."""
    now = updated_at or datetime.now(UTC)
    owner = {"epoch": 1, "owner_pid": 1, "owner_started_at": now, "started_at": now, "updated_at": now}
    written = {"config": Jsonb(CONFIGS.get(job, {})), "progress": Jsonb(report or {})}
    write(database, "jobs", {"job": job, **owner, **written, "state": state})
    if job in INPUTS:
        write(database, "positions", {"job": job, "input": INPUTS[job], "next_position": 1, "frontier": frontier})


def window(start: datetime, quantity: int = 1, **values: Any) -> dict[str, Any]:
    """A minute of `usage_windows`; `values` replace columns."""
    row = {"account": "a1", "model": "m1", "meter": "requests", "currency": "EUR", "price_version": 1, "unit_price": 0}
    return {**row, "window_start": start, "window_end": start + MINUTE, "quantity": quantity, **values}


def totals_of(job: str) -> tuple[Totals, ...]:
    """What a driver of `job` reads for its gauges."""
    return (exits_of(job), *import_module(f"jobs.{job}.pipeline").JOB.totals(job))
