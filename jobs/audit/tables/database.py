"""What the jobs have stored in Postgres, from one snapshot of the database: rows on disk, by bucket."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from psycopg import sql

from jobs.audit.bills.chains import CORRECTIONS
from jobs.audit.bills.days import STORED_DAYS
from jobs.audit.bills.decisions import DECIDED
from jobs.audit.bills.expected import same_json
from jobs.audit.bills.ladders import StoredLadders, stored_ladders
from jobs.audit.bills.members import LATE_MEMBERS as STORED_LATE_MEMBERS
from jobs.audit.bills.members import MEMBERS as STORED_MEMBERS
from jobs.audit.bills.members import STORED_CORRECTIONS
from jobs.audit.bills.months import Months, stored_months
from jobs.audit.bills.roll_ups import unequal_roll_ups
from jobs.audit.bills.windows import STORED_STRAGGLERS, STORED_WINDOWS
from jobs.audit.compare.columns import Wrong
from jobs.audit.compare.sessions import SESSIONS, of_user
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.audit.tables.copy import copy_rows
from jobs.audit.tables.spill import Spilled
from jobs.billing.config import BillingConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.started import started_config
from jobs.runtime.effective_rules import EffectiveRules, History
from jobs.runtime.postgres.address import in_schema, options_of
from jobs.runtime.postgres.rules_table import stored_history
from jobs.runtime.stored_config import parse_stored_config
from jobs.streams import Table
from metering.period_meters import Period
from metering.vocabulary import Job

WINDOWS, STRAGGLERS, CORRECTED, DAYS, DECISIONS = "windows", "stragglers", "corrections", "days", "decisions"
MEMBERS, LATE_MEMBERS, OF_PERIODS = "members", "late_members", "corrections_of_periods"
LIVE = "sessions"
PER_BUCKET = 100_000
"""About as many windows, or sessions, are held at once."""
STATEMENT_SECONDS = 1_800
"""A statement that takes longer keeps the database from clearing up: it ends."""
_MINUTES_TOGETHER = 10
_WEST_TO_EAST = timedelta(days=3)
"""A day is somewhere else, and a month may begin with what came before its first midnight."""


@dataclass(frozen=True)
class Billed:
    """How far usage is billed (`position`), with which F and by which rules, and what of it: `rows` by `buckets`."""

    position: int
    frontier: datetime | None
    rules: History
    buckets: int
    rows: Spilled
    periods: Mapping[str, Period] = field(default_factory=dict)
    """The period of each meter that bills whole periods."""

    def of_window(self) -> pl.Expr:
        """The bucket of a row that has a `window_start`."""
        slices = pl.col("window_start").dt.epoch("s") // (60 * _MINUTES_TOGETHER)
        return slices % self.buckets

    def of_account(self) -> pl.Expr:
        """The bucket of a row that has an account: all days of one are together."""
        return (pl.col("account").hash(0) % self.buckets).cast(pl.Int64)


@dataclass(frozen=True)
class Sessions:
    """How far the journal is in sessions, which gaps held from which lsn on, and the sessions: `rows` by `buckets`."""

    position: int
    gaps: list[tuple[int, timedelta]]
    buckets: int
    rows: Spilled

    @property
    def gaps_reached(self) -> list[tuple[int, timedelta]]:
        """The gaps that have cut sessions; if none is stored, the present one, from the position on."""
        reached = [(first, gap) for first, gap in self.gaps if first < self.position]
        return reached or ([(self.position, timedelta(0))] if self.position > 1 else [])


@dataclass(frozen=True)
class Stored:
    """One snapshot. What is on the disk goes with it."""

    billed: Billed
    sessions: Sessions
    months: Months
    ladders: StoredLadders
    roll_ups: Wrong
    """Of hours and months, against the windows and days beside them."""


_WINDOWS = """
SELECT window_start, account, model, meter, currency, price_version, unit_price, quantity, late_quantity, late_rows,
       unmetered_rows, corrected, window_end = window_start + interval '1 minute'
FROM usage_windows
"""
_STRAGGLERS = """
SELECT usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, decision, quantity,
       contained_quantity, unit_price, currency, price_version, cause, corrects_lsns, day, dimensions, hold_until,
       hold_expires, decided_lsn, decided_at, decided_by, reason, (late_seconds * 1000000)::bigint,
       coalesce(settled = 0, false), day IS NULL AND settled IS NULL
FROM stragglers
"""
_CORRECTIONS = """
SELECT usage_lsn, meter, number, usage_lsns, window_start, account, model, currency, dimensions, cause, decision,
       old_quantity, new_quantity, coalesce(old_amount, 0), coalesce(new_amount, 0)
FROM (SELECT * FROM corrections WHERE period IS NULL) AS of_windows
"""
_OF_PERIODS = """
SELECT account, meter, number, usage_lsn, window_start, model, currency, usage_lsns, cause, period,
       old_quantity, new_quantity, old_amount, new_amount
FROM corrections WHERE period IS NOT NULL
"""
_MEMBERS = """
SELECT account, first_day, model, meter, currency, price_version, member, value, occurred_at, member_rows
FROM usage_members
"""
_LATE_MEMBERS = """
SELECT account, meter, usage_lsn, first_day, model, currency, price_version, member, value, occurred_at, aggregation,
       period, cause, window_start, ends_at, member_rows
FROM late_members WHERE is_correction
"""
_PERIODS = "SELECT meter, period FROM meters WHERE period IS NOT NULL"
_DAYS = """
SELECT account, day, model, meter, currency, price_version, dimensions, unit_price, quantity, usage_rows,
       first_window, last_window_end, corrected, is_other
FROM usage_days
"""
_DECISIONS = "SELECT usage_lsn, meter, decision FROM stragglers"
_SESSIONS = "SELECT account, user_id, session_start, session_end, events FROM sessions WHERE retracted_at IS NULL"
_GAPS = "SELECT first_position, gap FROM session_gaps ORDER BY 1"
_POSITION = "SELECT next_position, frontier FROM positions WHERE job = %s AND input = %s"
_CONFIG = "SELECT config FROM jobs WHERE job = %s"


def connected(postgres_url: str) -> psycopg.Connection[Any]:
    """An autocommit connection that writes instants in ISO format and UTC, regardless of the database's settings."""
    url = in_schema(postgres_url)
    settings = f"-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c statement_timeout={STATEMENT_SECONDS}s"
    return psycopg.connect(url, autocommit=True, options=f"{options_of(url)} {settings}", connect_timeout=10)


def billing_position(postgres_url: str) -> int:
    """The next lsn of usage that billing folds."""
    with connected(postgres_url) as connection:
        return _position(connection, Job.BILLING, Table.USAGE)[0]


def joins_config(postgres_url: str) -> JoinsConfig:
    """What joins was started with last; the defaults where it never was."""
    with connected(postgres_url) as connection:
        return started_config(connection)


def stored(postgres_url: str, scope: Scope = EVERYTHING) -> Stored:
    """What the database has now for the period; sessions have no period, and are read only without one."""
    rows = Spilled(Path(tempfile.mkdtemp(prefix="weir-audit-")))
    weakref.finalize(rows, shutil.rmtree, rows.folder)
    with connected(postgres_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            months = stored_months(connection, *_days(scope))
            ladders = stored_ladders(connection)
            roll_ups = unequal_roll_ups(connection, *_days(scope))
            return Stored(billed(connection, rows, scope), sessions(connection, rows, scope), months, ladders, roll_ups)


def billed(connection: psycopg.Connection[Any], rows: Spilled, scope: Scope) -> Billed:
    """What billing has made, within the caller's transaction."""
    position, frontier = _position(connection, Job.BILLING, Table.USAGE)
    within = _within("window_start", scope.since, scope.until)
    window_rows = _number(connection, sql.SQL("SELECT count(*) FROM usage_windows{}").format(within))
    buckets = 1 + max(window_rows, position if scope.is_everything else 0) // PER_BUCKET
    periods = {meter: Period(period) for meter, period in connection.execute(_PERIODS).fetchall()}
    found = Billed(position, frontier, _rules(connection, position), buckets, rows, periods)
    parts: Mapping[str, tuple[str, pl.Schema]] = {
        WINDOWS: (_WINDOWS, STORED_WINDOWS),
        STRAGGLERS: (_STRAGGLERS, STORED_STRAGGLERS),
        CORRECTED: (_CORRECTIONS, CORRECTIONS),
    }
    for part, (statement, schema) in parts.items():
        for piece in copy_rows(connection, sql.SQL(statement) + within, schema):
            rows.add(part, _with_same_json(piece), found.of_window())
    some_days = _within("day", *_days(scope))
    for piece in copy_rows(connection, sql.SQL(_DAYS) + some_days, STORED_DAYS):
        rows.add(DAYS, _with_same_json(piece), found.of_account())
    if periods:
        for piece in copy_rows(connection, sql.SQL(_MEMBERS) + _within("first_day", *_days(scope)), STORED_MEMBERS):
            rows.add(MEMBERS, piece, found.of_account())
        for piece in copy_rows(connection, sql.SQL(_OF_PERIODS), STORED_CORRECTIONS):
            rows.add(OF_PERIODS, piece, found.of_account())
        for piece in copy_rows(connection, sql.SQL(_LATE_MEMBERS), STORED_LATE_MEMBERS):
            rows.add(LATE_MEMBERS, piece, found.of_account())
    for piece in copy_rows(connection, sql.SQL(_DECISIONS), DECIDED):
        rows.add(DECISIONS, piece, pl.lit(0))
    return found


def sessions(connection: psycopg.Connection[Any], rows: Spilled, scope: Scope) -> Sessions:
    """The sessions that are not retracted, within the caller's transaction."""
    position, _ = _position(connection, Job.SESSIONIZATION, Table.JOURNAL)
    found = Sessions(position, connection.execute(_GAPS).fetchall(), 1 + position // PER_BUCKET, rows)
    for piece in copy_rows(connection, sql.SQL(_SESSIONS), SESSIONS) if scope.is_everything else ():
        rows.add(LIVE, piece, of_user(found.buckets))
    return found


def decided(billed: Billed) -> Iterator[pl.DataFrame]:
    """DECIDED of all stragglers, some at a time."""
    return billed.rows.pieces(DECISIONS, 0)


def _days(scope: Scope) -> tuple[date | None, date | None]:
    """The days that may be in the period, in any zone: from one on, and before another."""
    return (
        None if scope.since is None else (scope.since - _WEST_TO_EAST).date(),
        None if scope.until is None else (scope.until + _WEST_TO_EAST).date(),
    )


def _within(column: str, since: object, until: object) -> sql.Composed:
    bounds = ((f"{column} >= {{}}", since), (f"{column} < {{}}", until))
    compared = [sql.SQL(compares).format(instant) for compares, instant in bounds if instant is not None]
    return sql.SQL(" WHERE " if compared else "") + sql.SQL(" AND ").join(compared)


def _position(connection: psycopg.Connection[Any], job: Job, table: Table) -> tuple[int, datetime | None]:
    """How far a job has come, and the F that it has reached."""
    row = connection.execute(_POSITION, [job.value, table.value]).fetchone()
    return (int(row[0]), row[1]) if row else (1, None)


def _number(connection: psycopg.Connection[Any], statement: sql.Composed) -> int:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def _rules(connection: psycopg.Connection[Any], position: int) -> History:
    """Billing's rules; if none are stored yet, its last configuration, from its position on."""
    if history := stored_history(connection, Job.BILLING.value):
        return history
    row = connection.execute(_CONFIG, [Job.BILLING.value]).fetchone()
    config = parse_stored_config(Job.BILLING.value, BillingConfig, row[0]) if row else BillingConfig()
    return (EffectiveRules(position, config.deciding),)


def _with_same_json(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(same_json(rows["dimensions"])) if "dimensions" in rows.columns else rows
