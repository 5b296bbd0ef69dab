"""How late usage is: the distribution that answers what another grace would have done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import polars as pl

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.exact import EXACT
from dashboard.queries.feed import Feed, feed_of
from metering.meters import Meter
from metering.words import Job, Outcome, UsageCause

DAYS = 7
MINUTE_SECONDS = 60

_KEYS = ["account", "currency", "late_seconds"]

# Whole seconds, rounded down: "late by x or more" is then exact for every whole x. On time is -1.
_LATE_SECONDS = (pl.col("received_at") - pl.col("event_time").dt.truncate("1m")).dt.total_microseconds().floordiv(
    1_000_000
) - MINUTE_SECONDS


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(pl.sum("usage_rows"), pl.sum("amount"), pl.max("received_at"))


def _reduce(rows: pl.LazyFrame) -> pl.LazyFrame:
    amounts = [pl.coalesce(pl.col(f"{meter}_amount"), Decimal(0)) for meter in Meter]
    return (
        rows.filter(
            pl.col("cause") == UsageCause.STREAM.value,
            pl.col("outcome").is_in([Outcome.MATCHED.value, Outcome.ABANDONED.value]),
        )
        .select(
            "account",
            "currency",
            "received_at",
            _LATE_SECONDS.clip(lower_bound=-1).alias("late_seconds"),
            pl.col("sign").cast(pl.Int64).alias("usage_rows"),
            (pl.sum_horizontal(amounts).cast(pl.Decimal(38, 12)) * pl.col("sign"))
            .cast(pl.Decimal(38, 12))
            .alias("amount"),
        )
        .group_by(_KEYS)
        .agg(pl.sum("usage_rows"), pl.sum("amount"), pl.max("received_at"))
    )


RECIPE = Recipe(name="lateness", table="usage", days=DAYS, reduce=_reduce, merge=_merge)


@dataclass(frozen=True)
class Arrivals:
    """Usage rows that came `late_seconds` (whole, rounded down) after their window's end; -1 is on time."""

    late_seconds: int
    currency: str | None
    usage_rows: int
    amount: Decimal


@dataclass(frozen=True)
class Lateness:
    """Every arrival of the last days, by lateness and currency."""

    feed: Feed
    arrivals: tuple[Arrivals, ...]
    files_read: int
    files: int
    newest: datetime | None

    def later_than(self, grace: timedelta) -> tuple[int, dict[str, Decimal]]:
        """How many usage rows a grace would have left behind as stragglers, and their money by currency."""
        seconds = grace.total_seconds()
        beyond = [one for one in self.arrivals if one.late_seconds >= seconds]
        amounts: dict[str, Decimal] = {}
        for one in beyond:
            if one.currency is not None:
                amounts[one.currency] = EXACT.add(amounts.get(one.currency, Decimal(0)), one.amount)
        return sum(one.usage_rows for one in beyond), amounts


def read_lateness(backend: Backend, account: str | None) -> Lateness:
    """The distribution over the last days, of one account or all."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
    found = digest(backend, RECIPE, feed.read_at.date())
    if found is None or found.rows.is_empty():
        return Lateness(feed, (), found.files_read if found else 0, found.files if found else 0, None)
    rows = found.rows if account is None else found.rows.filter(pl.col("account") == account)
    arrivals = rows.group_by("late_seconds", "currency").agg(pl.sum("usage_rows"), pl.sum("amount"))
    ordered = arrivals.sort("late_seconds", "currency").select("late_seconds", "currency", "usage_rows", "amount")
    return Lateness(
        feed=feed,
        arrivals=tuple(Arrivals(*row) for row in ordered.iter_rows()),
        files_read=found.files_read,
        files=found.files,
        newest=found.newest,
    )
