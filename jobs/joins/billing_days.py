"""The account's calendar day of usage, as columns, by the zones of `metering.months`.

The day follows from what was known of the account when the outcome was decided. Without an account or a zone it is UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

import polars as pl
import pyarrow as pa

from metering import months
from metering.months import BEGINNING_OF_TIME as FIRST
from metering.months import UNKNOWN_ZONE, MonthZone, period_bounds, zone_of
from metering.period_meters import Period
from metering.pricing import Version

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)

MONTHS: dict[str, pl.DataType | type[pl.DataType]] = {
    "account": pl.String,
    "seen_lsn": pl.Int64,
    "start": pl.Datetime("us", "UTC"),
    "zone": pl.String,
    "first_day": pl.Date,
}
_OF_MONTH = {"start_known": MONTHS["start"], "zone_known": MONTHS["zone"], "month_begins_known": MONTHS["first_day"]}
Zones = list[tuple[datetime, str, date | None]]
"""From when on which zone names the days, in order, and before which date none is named."""


def month_zones(versions: Sequence[Version[str]], decided_lsn: int) -> Zones:
    """The zones of the months of one account, as seen from `decided_lsn`; `versions` hold its zone, None: deleted."""
    seen = sorted((v for v in versions if v.lsn < decided_lsn), key=lambda version: version.lsn)
    changes = months.zone_changes((v.effective_from, v.value) for v in seen if v.value is not None)
    return [(month_zone.start, month_zone.zone, month_zone.first_day) for month_zone in months.month_zones(changes)]


@lru_cache(maxsize=65_536)
def offsets_of(zone: str, day: date) -> tuple[timedelta, datetime, timedelta]:
    """A zone's offset at the start of a day of UTC, the instant at which that changes (its end: not), the one after."""
    start = datetime.combine(day, time(), UTC)
    low, high = start, start + DAY
    before, after = _offset(zone, low), _offset(zone, high)
    while before != after and high - low > SECOND:
        middle = low + (high - low) // 2 // SECOND * SECOND
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return before, high, after


def _offset(zone: str, instant: datetime) -> timedelta:
    return instant.astimezone(zone_of(zone)).utcoffset() or timedelta()


def zone_versions(accounts: pa.Table) -> pl.DataFrame:
    """All versions of accounts (streams.ACCOUNTS) → (account, lsn, holds_from, zone) of those that have a zone, by lsn.

    A zone never applies to the past, even if it is backdated: borders that somebody has seen stay. A deletion has no
    zone, so the calendar continues when the account is created again.
    """
    holds_from = pl.max_horizontal("effective_from", "committed_at")
    return (
        pl.DataFrame(accounts)
        .filter(~pl.col("deleted"))
        .select("account", "lsn", holds_from=holds_from, zone=pl.col("timezone").fill_null(UNKNOWN_ZONE))
        .sort("lsn")
    )


class BillingDays:
    """The days of all accounts, computed again when one of them changes. Nearly all have had one zone for ever."""

    def __init__(self, accounts: pa.Table) -> None:
        """`accounts`: all versions (streams.ACCOUNTS)."""
        self._versions = zone_versions(accounts)
        self._accounts = self._versions.group_by("account").agg(
            first_lsn=pl.min("lsn"), zone=pl.first("zone"), has_moved=pl.n_unique("zone") > 1
        )
        self._months: dict[tuple[str, int], Zones] = {}

    def days(self, outcomes: pl.DataFrame) -> pl.Series:
        """`day` of each outcome (account, event_time, request_lsn, completion_lsn), in their order."""
        return self._placed(outcomes)["day"]

    def periods(self, outcomes: pl.DataFrame, period: Period, seen_from: int | None = None) -> pl.DataFrame:
        """(first_day, starts_at, ends_at) of each outcome's period, in their order, by the calendar of `day`.

        `seen_from`: a reader that looks back also knows the versions before that lsn. A day of before the account was
        known keeps its name, and begins and ends as the account's day of this name does.
        """
        of_month = ("start", "zone", "month_begins")
        first_day = pl.col("day").dt.truncate("1mo") if period is Period.MONTH else pl.col("day")
        days = self._placed(outcomes).rename({"first_day": "month_begins"}).with_columns(first_day=first_day)
        if seen_from is not None:
            days = self._known_by_now(days, seen_from)
        placed = days.select(*of_month, "first_day")
        found = [
            (start, zone, begins, first, *period_bounds(first, period, MonthZone(start or FIRST, zone, begins)))
            for start, zone, begins, first in placed.unique().iter_rows()
        ]
        kinds = {**placed.schema, **dict.fromkeys(("starts_at", "ends_at"), pl.Datetime("us", "UTC"))}
        bounds = pl.DataFrame(found, schema=kinds, orient="row")
        both = placed.join(bounds, on=placed.columns, how="left", nulls_equal=True, maintain_order="left")
        return both.select("first_day", "starts_at", "ends_at")

    def _known_by_now(self, days: pl.DataFrame, seen_from: int) -> pl.DataFrame:
        """Days (account, is_seen, first_day) whose account became known before `seen_from`, with the month of then."""
        known = self._versions.filter(pl.col("lsn") < seen_from).group_by("account").agg(seen_lsn=pl.max("lsn"))
        unseen = days.filter(~pl.col("is_seen")).select("account", "first_day").unique()
        found = []
        for account, first_day, seen_lsn in unseen.join(known, on="account").iter_rows():
            zones = [zone for zone in self._zones(account, seen_lsn) if zone[2] is None or zone[2] <= first_day]
            found.append((account, first_day, False, *zones[-1]))
        kinds = {**{name: days.schema[name] for name in ("account", "first_day", "is_seen")}, **_OF_MONTH}
        months = pl.DataFrame(found, schema=kinds, orient="row")
        joined = days.join(months, on=["account", "first_day", "is_seen"], how="left", maintain_order="left")
        is_known = pl.col("zone_known").is_not_null()
        return joined.with_columns(
            pl.when(is_known).then(f"{name}_known").otherwise(name).alias(name)
            for name in ("start", "zone", "month_begins")
        )

    def _placed(self, outcomes: pl.DataFrame) -> pl.DataFrame:
        """`day` of each outcome, and the `zone`, `first_day` and `start` of its month, in their order."""
        decided_lsn = pl.max_horizontal("request_lsn", "completion_lsn")
        rows = outcomes.select("account", "event_time", decided_lsn=decided_lsn).with_row_index()
        concerned = self._accounts.join(rows.select("account"), on="account", how="semi")
        rows = rows.join(concerned, on="account", how="left")
        is_seen = (pl.col("decided_lsn") > pl.col("first_lsn")).fill_null(False)
        placed = rows.with_columns(
            is_seen=is_seen,
            zone=pl.when(is_seen).then("zone").otherwise(pl.lit(UNKNOWN_ZONE)),
            first_day=pl.lit(None, pl.Date),
            start=pl.lit(None, pl.Datetime("us", "UTC")),
        )
        has_moved = is_seen & pl.col("has_moved").fill_null(False)
        if concerned["has_moved"].any():
            moved = self._of_months(placed.filter(has_moved))
            placed = pl.concat([placed.filter(~has_moved).select(moved.columns), moved])
        return _with_day(placed).sort("index")

    def _of_months(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows (index, account, event_time, decided_lsn) with the `zone` of their month, and what no day is before."""
        lsn = self._versions.select("account", "lsn", seen_lsn="lsn")
        seen = rows.sort("decided_lsn").join_asof(
            lsn, left_on="decided_lsn", right_on="lsn", by="account", allow_exact_matches=False, check_sortedness=False
        )
        months = [
            {"account": account, "seen_lsn": seen_lsn, "start": start, "zone": zone, "first_day": first_day}
            for account, seen_lsn in seen.select("account", "seen_lsn").unique().iter_rows()
            for start, zone, first_day in self._zones(account, seen_lsn)
        ]
        return (
            seen.drop("zone", "first_day", "start")
            .sort("event_time")
            .join_asof(
                pl.DataFrame(months, schema=MONTHS).sort("start"),
                left_on="event_time",
                right_on="start",
                by=["account", "seen_lsn"],
                coalesce=False,
                check_sortedness=False,
            )
            .select("index", "account", "event_time", "is_seen", "zone", "first_day", "start")
        )

    def _zones(self, account: str, seen_lsn: int) -> Zones:
        key = account, seen_lsn
        if key not in self._months:
            versions = [
                Version(lsn, holds_from, zone)
                for lsn, holds_from, zone in self._versions.filter(account=account)
                .select("lsn", "holds_from", "zone")
                .iter_rows()
            ]
            self._months[key] = month_zones(versions, seen_lsn + 1)
        return self._months[key]


def _with_day(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (event_time, zone, first_day) with their `day`: a zone's offsets are looked up once per day of UTC."""
    rows = rows.with_columns(utc_day=pl.col("event_time").dt.date())
    pairs = rows.select("zone", "utc_day").unique()
    offsets = [(zone, day, *offsets_of(zone, day)) for zone, day in pairs.iter_rows()]
    found = pl.DataFrame(
        offsets,
        schema={
            "zone": pl.String,
            "utc_day": pl.Date,
            "before": pl.Duration("us"),
            "changes_at": pl.Datetime("us", "UTC"),
            "after": pl.Duration("us"),
        },
        orient="row",
    )
    offset = pl.when(pl.col("event_time") < pl.col("changes_at")).then("before").otherwise("after")
    local = pl.col("event_time").dt.replace_time_zone(None) + offset
    return rows.join(found, on=["zone", "utc_day"], how="left").with_columns(
        day=pl.max_horizontal(local.dt.date(), "first_day")
    )
