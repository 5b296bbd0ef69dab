"""How late usage is: the distribution that shows the effect of another grace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import polars as pl
import polars.selectors as cs

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.queries.feed import Feed, feed_of
from jobs.usage_entries import ENTRY, METERED_COLUMNS, metered
from metering.digits import EXACT
from metering.meters import QUANTITY_DECIMALS
from metering.vocabulary import Job, Outcome, UsageCause

DAYS = 7
MINUTE_SECONDS = 60
SUM = pl.Decimal(38, QUANTITY_DECIMALS)

_KEYS = ["account", "currency", "late_seconds", "unit_price"]
"""Quantities of one price are added up across meters and multiplied once, by Python: Polars may lose digits."""
_SUMS = [pl.sum("usage_rows"), pl.sum("quantity"), pl.max("received_at")]

# Whole seconds, rounded down: "late by x or more" is then exact for every whole x. On time is -1.
_LATE_SECONDS = (pl.col("received_at") - pl.col("event_time").dt.truncate("1m")).dt.total_microseconds().floordiv(
    1_000_000
) - MINUTE_SECONDS


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(_SUMS)


def _reduce(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Per key the rows of `usage`, which have no price here, or the quantities at a price, which are no rows."""
    arrived = rows.filter(
        pl.col("cause") == UsageCause.STREAM.value,
        pl.col("outcome").is_in([Outcome.MATCHED.value, Outcome.ABANDONED.value]),
    ).with_columns(_LATE_SECONDS.clip(lower_bound=-1).alias("late_seconds"))
    kept = ["account", "currency", "late_seconds", "received_at"]
    quantity = pl.when(pl.col("sign") < 0).then(-pl.col("quantity")).otherwise(pl.col("quantity"))
    counted = arrived.select(
        *kept,
        pl.lit(None, ENTRY["unit_price"]).alias("unit_price"),
        pl.col("sign").cast(pl.Int64).alias("usage_rows"),
        pl.lit(None, SUM).alias("quantity"),
    )
    priced = (
        metered(arrived.select(*kept, "outcome", "sign", cs.by_name(*METERED_COLUMNS, require_all=False)))
        .filter(pl.col("unit_price").is_not_null(), pl.col("quantity") != 0)
        .select(*kept, "unit_price", pl.lit(0, pl.Int64).alias("usage_rows"), quantity.cast(SUM))
    )
    return pl.concat([counted, priced]).group_by(_KEYS).agg(_SUMS)


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
        beyond = [arrival for arrival in self.arrivals if arrival.late_seconds >= seconds]
        amounts: dict[str, Decimal] = {}
        for arrival in beyond:
            if arrival.currency is not None:
                amounts[arrival.currency] = EXACT.add(amounts.get(arrival.currency, Decimal(0)), arrival.amount)
        return sum(arrival.usage_rows for arrival in beyond), amounts


def read_lateness(backend: Backend, account: str | None) -> Lateness:
    """The distribution over the last days, of one account or all."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
    found = digest(backend, RECIPE, feed.read_at.date())
    if found is None or found.rows.is_empty():
        return Lateness(feed, (), found.files_read if found else 0, found.files if found else 0, None)
    rows = found.rows if account is None else found.rows.filter(pl.col("account") == account)
    summed = rows.group_by("late_seconds", "currency", "unit_price").agg(pl.sum("usage_rows", "quantity"))
    return Lateness(
        feed=feed,
        arrivals=_arrivals(summed),
        files_read=found.files_read,
        files=found.files,
        newest=found.newest,
    )


def _arrivals(rows: pl.DataFrame) -> tuple[Arrivals, ...]:
    """Rows by lateness, currency and price → by lateness and currency, with what the quantities cost."""
    found: dict[tuple[int, str | None], tuple[int, Decimal]] = {}
    for late_seconds, currency, unit_price, usage_rows, quantity in rows.iter_rows():
        earlier_rows, amount = found.get((late_seconds, currency), (0, Decimal(0)))
        if unit_price is not None:
            amount = EXACT.add(amount, EXACT.multiply(quantity, unit_price))
        found[late_seconds, currency] = earlier_rows + usage_rows, amount
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return tuple(Arrivals(*key, *sums) for key, sums in ordered)
