"""I6 of meters of a period: the members of each set beside those that usage puts, and what the set comes to on its day.

A correction of a period that was shown closed (I8) names rows of usage that came when it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

import polars as pl

from jobs.audit.compare.columns import Compared, Wrong
from jobs.audit.recompute.money import SUM
from jobs.streams import UNIT_PRICE
from metering.period_meters import Aggregation, Period
from metering.windows import MINUTE

_INSTANT = pl.Datetime("us", "UTC")
_VALUE = pl.Decimal(38, 6)
OF_SET = ("account", "day", "model", "meter", "currency", "price_version")
_KEY = (*OF_SET, "member")
MEMBERS = pl.Schema(
    {
        "account": pl.String(),
        "day": pl.Date(),
        **{name: pl.String() for name in ("model", "meter", "currency")},
        "price_version": pl.Int64(),
        "member": pl.String(),
        "value": _VALUE,
        "occurred_at": _INSTANT,
        "member_rows": pl.Int64(),
    }
)
"""`usage_members`; `day` is the first of the period."""
MADE_MEMBERS = pl.Schema(
    {
        **MEMBERS,
        "aggregation": pl.String(),
        "period": pl.String(),
        "unit_price": pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale),
        "first_window": _INSTANT,
        "last_window": _INSTANT,
    }
)
"""The same as usage puts them, and what it says of their sets."""
CORRECTING_MEMBERS = pl.Schema({"account": pl.String(), "usage_lsn": pl.Int64(), "meter": pl.String()})
"""Rows of usage that put or take back a member of a period that was shown closed."""
STORED_CORRECTIONS = pl.Schema(
    {"account": pl.String(), "usage_lsn": pl.Int64(), "meter": pl.String(), "usage_lsns": pl.String()}
)
"""`corrections` of periods."""
_MEMBERS = Compared(
    "the period from {day}, {meter} of {account}, {model}, {member} at price version {price_version} ({currency})",
    _KEY,
    ("value", "occurred_at", "member_rows"),
    absent={},
)


def made_members(staged: pl.DataFrame) -> pl.DataFrame:
    """STAGED (`billing.sums`) → MADE_MEMBERS, each key once."""
    rows = staged.filter(pl.col("aggregation").is_not_null())
    return added_members(
        rows.select(
            pl.exclude("quantity"),
            pl.col("quantity").cast(pl.Int64).alias("member_rows"),
            pl.col("window_start").alias("first_window"),
            pl.col("window_start").alias("last_window"),
        )
    )


def added_members(rows: pl.DataFrame) -> pl.DataFrame:
    """MADE_MEMBERS with each key once."""
    summed = rows.group_by(_KEY).agg(
        pl.sum("member_rows"),
        pl.max("value", "occurred_at", "aggregation", "period", "unit_price", "last_window"),
        pl.min("first_window"),
    )
    return summed.select(pl.col(name).cast(kind) for name, kind in MADE_MEMBERS.items())


def correcting_members(staged: pl.DataFrame) -> pl.DataFrame:
    """STAGED → CORRECTING_MEMBERS."""
    rows = staged.filter(pl.col("aggregation").is_not_null() & pl.col("is_correction"))
    return rows.select(CORRECTING_MEMBERS.names())


def days_of_sets(made: pl.DataFrame) -> pl.DataFrame:
    """MADE_MEMBERS with each key once → what their sets come to, as `expected.DAYS`."""
    stands = pl.col("member_rows") > 0
    is_unique = pl.col("aggregation") == Aggregation.UNIQUE.value
    ordered = made.sort("occurred_at", "value", nulls_last=False)
    greatest = pl.col("value").filter(stands).last()
    return ordered.group_by(OF_SET).agg(
        quantity=pl.when(is_unique.any())
        .then(stands.sum().cast(SUM))
        .otherwise(greatest.fill_null(Decimal(0)).cast(SUM)),
        unit_price=pl.max("unit_price"),
        usage_rows=pl.sum("member_rows"),
        first_window=pl.min("first_window"),
        last_window_end=pl.max("last_window") + MINUTE,
        dimensions=pl.lit(None, pl.String),
        corrected=pl.lit(value=False),
        is_put_right=pl.lit(value=True),
    )


def whole_periods(
    rows: pl.DataFrame, periods: Mapping[str, Period], begin: date | None, until: date | None
) -> pl.DataFrame:
    """Rows (day, meter) of the meters of a period whose period lies in these days; None: there is no such border."""
    ends = [
        (meter, day, period.following(day))
        for meter, period in periods.items()
        for day in rows.filter(pl.col("meter") == meter)["day"].unique()
    ]
    known = pl.DataFrame(ends, schema={"meter": pl.String, "day": pl.Date, "_ends": pl.Date}, orient="row")
    placed = rows.join(known, on=["meter", "day"], how="inner")
    bounds = [pl.col("day") >= begin] if begin is not None else []
    bounds += [pl.col("_ends") <= until] if until is not None else []
    return placed.filter(*bounds).drop("_ends") if bounds else placed.drop("_ends")


def unequal_members(made: pl.DataFrame, stored: pl.DataFrame) -> Wrong:
    """MADE_MEMBERS and MEMBERS of the same periods."""
    return _MEMBERS.unequal(stored, made)


def wrong_corrections(stored: pl.DataFrame, made: pl.DataFrame) -> Wrong:
    """STORED_CORRECTIONS that name a row of usage that changed no closed period (CORRECTING_MEMBERS)."""
    named = stored.with_columns(
        named=pl.col("usage_lsns").str.strip_chars("{}").str.split(",").cast(pl.List(pl.Int64), strict=False)
    ).explode("named")
    unfounded = named.join(
        made, left_on=["account", "named", "meter"], right_on=["account", "usage_lsn", "meter"], how="anti"
    )
    if unfounded.is_empty():
        return Wrong(len(stored))
    account, lsn, meter = unfounded.select("account", "usage_lsn", "meter").sort("usage_lsn").row(0)
    sentence = f"the correction {lsn} of {meter} of {account} names usage that changed no closed period"
    return Wrong(len(stored), unfounded["usage_lsn"].n_unique(), sentence)
