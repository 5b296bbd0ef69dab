"""What billing has stored, as one snapshot of the database says it, and what of that contradicts itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from jobs.audit.minutes import MINUTES
from jobs.audit.pinned import EVERYTHING, Asked
from jobs.joins.config import JoinsConfig
from jobs.streams import Table
from metering.words import Job


@dataclass(frozen=True)
class Billed:
    """How far usage is billed (`position`), and by minute (MINUTES) the windows and the stragglers that are in none."""

    position: int
    windows: pl.DataFrame
    dropped: pl.DataFrame


@dataclass(frozen=True)
class Contradictions:
    """How many rows were examined, and a sentence for each that another contradicts."""

    examined: int
    broken: list[str]


@dataclass(frozen=True)
class Sessions:
    """How far the journal is in sessions, how many requests each user has in them, and whose sessions overlap."""

    position: int
    events: pl.DataFrame
    overlapping: list[str]


@dataclass(frozen=True)
class Stored:
    """One snapshot: what is billed, and what contradicts itself."""

    billed: Billed
    sessions: Sessions
    days: Contradictions
    corrections: Contradictions


_COLUMNS = ", ".join(MINUTES)
_WINDOWS = f"SELECT {_COLUMNS} FROM usage_windows WHERE quantity <> 0"
_DROPPED = f"SELECT {_COLUMNS} FROM stragglers WHERE decision NOT IN ('correct', 'approve')"

EVENTS = pl.Schema({"account": pl.String(), "user_id": pl.String(), "events": pl.Int64()})
_EVENTS = "SELECT account, user_id, sum(events) AS events FROM sessions WHERE retracted_at IS NULL GROUP BY 1, 2"
_OVERLAPPING = """
SELECT account, user_id, session_start FROM (
    SELECT *, lag(session_end) OVER (PARTITION BY account, user_id ORDER BY session_start) AS ended
    FROM sessions WHERE retracted_at IS NULL
) AS followed WHERE session_start <= ended ORDER BY 1, 2, 3
"""
_POSITION = "SELECT next_position FROM positions WHERE job = %s AND input = %s"

# A day has the minutes that its account's zone says, which moves; of all days together nothing depends on it.
_DAYS = """
SELECT account, model, meter, currency, price_version, sum(minutes), sum(days), count(*)
FROM (
    SELECT account, model, meter, currency, price_version, quantity AS minutes, 0 AS days FROM usage_windows
    UNION ALL
    SELECT account, model, meter, currency, price_version, 0, quantity FROM usage_days
) AS sums GROUP BY 1, 2, 3, 4, 5
"""
_CORRECTIONS = """
WITH named AS (SELECT meter, unnest(usage_lsns) AS usage_lsn FROM corrections)
SELECT usage_lsn, meter, 'changed a window and is no correction'
FROM stragglers
WHERE decision IN ('correct', 'approve') AND cause = 'stream'
  AND NOT EXISTS (SELECT FROM named WHERE (named.usage_lsn, named.meter) = (stragglers.usage_lsn, stragglers.meter))
UNION ALL
SELECT usage_lsn, meter, 'is a correction of another quantity or amount than the straggler has'
FROM corrections LEFT JOIN stragglers USING (usage_lsn, meter)
WHERE corrections.cause = 'stream' AND (
    stragglers.quantity IS DISTINCT FROM new_quantity - old_quantity
    OR coalesce(amount, 0) <> coalesce(new_amount, 0) - coalesce(old_amount, 0)
)
ORDER BY 1, 2
"""


_OPTIONS = "-c timezone=UTC -c datestyle=ISO -c statement_timeout=30min"


def connected(postgres_url: str) -> psycopg.Connection[Any]:
    """A connection that commits by itself, and says instants in UTC and in ISO 8601, whatever the database prefers."""
    return psycopg.connect(postgres_url, autocommit=True, options=_OPTIONS, connect_timeout=10)


def billing_position(postgres_url: str) -> int:
    """The next lsn of usage that billing folds."""
    with connected(postgres_url) as connection:
        return _position(connection, Job.BILLING, Table.USAGE)


def stored(postgres_url: str, asked: Asked = EVERYTHING) -> Stored:
    """What the database holds now: windows, stragglers and corrections of the period that is asked for.

    Days and sessions have no period: they are read without one.
    """
    with connected(postgres_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            return Stored(
                billed=billed(connection, asked),
                sessions=sessions(connection) if asked.is_everything else Sessions(1, pl.DataFrame(schema=EVENTS), []),
                days=broken_days(connection) if asked.is_everything else Contradictions(0, []),
                corrections=broken_corrections(connection),
            )


def billed(connection: psycopg.Connection[Any], asked: Asked) -> Billed:
    """The windows and what was dropped, within the caller's transaction."""
    bounds = (("window_start >= {}", asked.since), ("window_start < {}", asked.until))
    within = [sql.SQL(compares).format(instant) for compares, instant in bounds if instant is not None]
    windows, dropped = (
        _table(connection, sql.SQL(" AND ").join([sql.SQL(said), *within]), MINUTES) for said in (_WINDOWS, _DROPPED)
    )
    return Billed(_position(connection, Job.BILLING, Table.USAGE), windows, dropped)


def sessions(connection: psycopg.Connection[Any]) -> Sessions:
    """The sessions that are not retracted."""
    overlapping = [
        f"the session of {user} of {account} from {start:%Y-%m-%dT%H:%M:%SZ} begins in the one before it"
        for account, user, start in connection.execute(_OVERLAPPING).fetchall()
    ]
    position = _position(connection, Job.SESSIONIZATION, Table.JOURNAL)
    return Sessions(position, _table(connection, sql.SQL(_EVENTS), EVENTS), overlapping)


def _position(connection: psycopg.Connection[Any], job: Job, table: Table) -> int:
    row = connection.execute(_POSITION, [job.value, table.value]).fetchone()
    return row[0] if row else 1


def joins_config(postgres_url: str) -> JoinsConfig:
    """What joins was started with last; the defaults where it never was."""
    with connected(postgres_url) as connection:
        row = connection.execute("SELECT config FROM jobs WHERE job = %s", [Job.JOINS.value]).fetchone()
    return JoinsConfig.model_validate(row[0]) if row else JoinsConfig()


def broken_days(connection: psycopg.Connection[Any]) -> Contradictions:
    """I6: of each account, model, meter, currency and price version the days add up to the minutes."""
    rows = connection.execute(_DAYS).fetchall()
    return Contradictions(
        sum(row[7] for row in rows),
        [
            f"{meter} of {account}, {model}, at price version {version} ({currency}): minutes {minutes}, days {days}"
            for account, model, meter, currency, version, minutes, days, _ in rows
            if minutes != days
        ],
    )


def broken_corrections(connection: psycopg.Connection[Any]) -> Contradictions:
    """I8: each straggler that changed a window is in one correction, of its own quantity and amount."""
    examined = connection.execute("SELECT count(*) FROM corrections").fetchone()
    rows = connection.execute(_CORRECTIONS).fetchall()
    return Contradictions(
        examined[0] if examined else 0, [f"{meter} of usage {lsn} {what}" for lsn, meter, what in rows]
    )


def _table(connection: psycopg.Connection[Any], statement: sql.Composable, schema: pl.Schema) -> pl.DataFrame:
    """The rows of a statement, as Arrow reads them."""
    sink = pa.BufferOutputStream()
    with connection.cursor().copy(sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, HEADER)").format(statement)) as copy:
        for data in copy:
            sink.write(data)
    kinds = pl.DataFrame(schema=schema).to_arrow().schema
    # What is null is empty: a model may be called `NA`, and have lines.
    read = csv.ConvertOptions(
        column_types=kinds, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    lines = csv.ParseOptions(newlines_in_values=True)
    return pl.DataFrame(csv.read_csv(sink.getvalue(), convert_options=read, parse_options=lines)).cast(schema)
