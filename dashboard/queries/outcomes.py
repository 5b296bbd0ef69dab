"""Outcomes of requests: matched, abandoned, orphaned or superseded, by minute; and how many wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.queries.feed import Feed, feed_of
from metering.vocabulary import Job, UsageCause

DAYS = 2

_KEYS = ["account", "minute", "outcome"]


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(pl.sum("usage_rows"), pl.max("received_at"))


RECIPE = Recipe(
    name="outcomes",
    table="usage",
    days=DAYS,
    reduce=lambda rows: (
        rows.filter(pl.col("cause") != UsageCause.DECIDED.value)
        .select(
            "account",
            pl.col("received_at").dt.truncate("1m").alias("minute"),
            "outcome",
            "received_at",
            pl.col("sign").cast(pl.Int64).alias("usage_rows"),
        )
        .group_by(_KEYS)
        .agg(pl.sum("usage_rows"), pl.max("received_at"))
    ),
    merge=_merge,
)


@dataclass(frozen=True)
class Outcomes:
    """Usage rows per (minute of `received_at`, outcome), oldest first. `waiting` is None where it must not be known."""

    feed: Feed
    by_minute: tuple[tuple[datetime, str, int], ...]
    waiting: int | None
    files_read: int
    files: int
    newest: datetime | None

    def total(self, outcome: str) -> int:
        """How many became so."""
        return sum(usage_rows for _, became, usage_rows in self.by_minute if became == outcome)


_WAITING = "SELECT (progress ->> 'waiting')::bigint AS waiting FROM jobs WHERE job = 'joins'"


def read_outcomes(backend: Backend, hours: int, account: str | None) -> Outcomes:
    """The last hours, of one account or all. Those that wait are counted over all accounts, or not shown."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.JOINS)
        row = cursor.execute(_WAITING).fetchone()
    waiting = row["waiting"] if row and backend.scope.is_all and account is None else None
    found = digest(backend, RECIPE, feed.read_at.date())
    if found is None or found.rows.is_empty():
        return Outcomes(feed, (), waiting, found.files_read if found else 0, found.files if found else 0, None)
    rows = found.rows.filter(pl.col("minute") >= (feed.frontier or feed.read_at) - timedelta(hours=hours))
    if account is not None:
        rows = rows.filter(pl.col("account") == account)
    by_minute = rows.group_by("minute", "outcome").agg(pl.sum("usage_rows")).sort("minute", "outcome")
    return Outcomes(feed, tuple(by_minute.iter_rows()), waiting, found.files_read, found.files, found.newest)
