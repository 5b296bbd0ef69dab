"""I6: usage by the account's days and by dimensions, compared with what billing must have made of usage."""

from __future__ import annotations

from decimal import Decimal

import polars as pl

from jobs.audit.bills.expected import DAY_KEY, DAYS, NOT_PLACED, added_days
from jobs.audit.compare.columns import Compared, Wrong
from jobs.billing.days import MAX_COMBINATIONS

STORED_DAYS = pl.Schema(
    {**{name: kind for name, kind in DAYS.items() if name != "is_put_right"}, "is_other": pl.Boolean()}
)
"""`usage_days`."""
_KEY = (*DAY_KEY, "dimensions", "is_other")
_AT_PRICE = " at price version {price_version} ({currency})"
_DAYS = Compared(
    "the day {day}, {meter} of {account}, {model}, {dimensions}," + _AT_PRICE,
    _KEY,
    ("unit_price", "quantity", "usage_rows", "first_window", "last_window_end", "corrected"),
    absent={},
)
_AT_ALL = ("account", "model", "meter", "currency", "price_version")
_TOTALS = Compared(
    "all days, {meter} of {account}, {model}," + _AT_PRICE,
    _AT_ALL,
    ("quantity",),
    absent={"quantity": Decimal(0)},
)


def unequal_days(made: pl.DataFrame, stored: pl.DataFrame, *, is_everything: bool) -> Wrong:
    """DAYS of usage and STORED_DAYS, of the same accounts and of complete days.

    For accounts with usage of an earlier release, whose days were made of minutes, only the sum of all days can be
    compared: if `is_everything` was read.
    """
    earlier = made.filter(pl.col("day") == NOT_PLACED).select("account").unique()
    rest, known = (rows.join(earlier, on="account", how="anti") for rows in (made, stored))
    days = _admitted(rest, known)
    wrong = _DAYS.unequal(_excused(known, days), days) + crowded_out(rest, known)
    if not is_everything or earlier.is_empty():
        return wrong
    must, found = (
        rows.join(earlier, on="account", how="semi").group_by(_AT_ALL).agg(pl.sum("quantity"))
        for rows in (made, stored)
    )
    return wrong + _TOTALS.unequal(found, must)


def _admitted(made: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """By the combinations of dimensions that have rows of their own; what has none is together."""
    own = stored.select("account", "day", "dimensions").drop_nulls().unique().with_columns(is_own=True)
    rows = made.join(own, on=["account", "day", "dimensions"], how="left").with_columns(
        is_other=pl.col("dimensions").is_not_null() & pl.col("is_own").is_null()
    )
    named = rows.with_columns(dimensions=pl.when(~pl.col("is_other")).then("dimensions"))
    parts = [
        added_days(held.select(DAYS.names())).with_columns(is_other=pl.lit(is_other))
        for is_other, held in ((is_other, named.filter(pl.col("is_other") == is_other)) for is_other in (False, True))
    ]
    return pl.concat(parts)


def crowded_out(made: pl.DataFrame, stored: pl.DataFrame, max_combinations: int = MAX_COMBINATIONS) -> Wrong:
    """Only where an account's day has more combinations than there is room for, some are together: those beyond it."""
    day = ["account", "day"]
    come, own = (
        rows.group_by(day).agg(combinations=pl.col("dimensions").drop_nulls().n_unique()).filter(is_full)
        for rows, is_full in (
            (made, pl.col("combinations") > max_combinations),
            (stored, pl.col("combinations") >= max_combinations),
        )
    )
    other = stored.filter("is_other").select(day).unique()
    wrong = other.join(come.join(own, on=day), on=day, how="anti")
    if wrong.is_empty():
        return Wrong()
    account, at = wrong.sort(day).row(0)
    return Wrong(found=len(wrong), first=f"the day {at} of {account} has other dimensions, and there is room for more")


def _excused(stored: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """A correcting row may or may not have been a correction: the windows decide."""
    either = made.filter(pl.col("is_put_right") & ~pl.col("corrected")).select(*_KEY, is_either=True)
    both = stored.join(either, on=_KEY, how="left", nulls_equal=True)
    return both.with_columns(pl.col("corrected") & pl.col("is_either").is_null())
