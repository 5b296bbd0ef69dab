"""The change of signed usage rows in money: quantities are summed per unit price, then multiplied once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from decimal import Decimal

import polars as pl
import pyarrow as pa

from jobs.streams import QUANTITY
from jobs.usage_entries import METERED_COLUMNS, metered
from metering.digits import EXACT

SUM = pl.Decimal(38, QUANTITY.scale)
Changed = Mapping[tuple[str, str], Decimal]
"""Cause and currency → signed amount. What has no price is in none, nor is what has no currency: it is worth nothing,
and has a unit price of 0 where another meter bills its units."""
_READ = ("outcome", "sign", "cause", "currency", *METERED_COLUMNS)


def rows_by_cause(rows: pa.Table) -> Counter[str]:
    """How many rows (`corrections.CORRECTIONS`) have which cause."""
    return Counter(rows["cause"].to_pylist())


def money_by_cause(rows: pa.Table) -> Changed:
    """Rows (`corrections.CORRECTIONS`) → what all of them together add to the bills, to the last digit."""
    quantity = pl.col("quantity").cast(SUM)
    summed = (
        metered(pl.DataFrame(rows).select(name for name in _READ if name in rows.column_names).lazy())
        .filter(pl.all_horizontal(pl.col("unit_price", "quantity", "currency").is_not_null()))
        .group_by("cause", "currency", "unit_price")
        .agg(pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity).sum().alias("quantity"))
        .collect()
    )
    changed: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for cause, currency, unit_price, count in summed.iter_rows():
        changed[cause, currency] = EXACT.add(changed[cause, currency], EXACT.multiply(count, unit_price))
    return dict(changed)


def added(left: Changed, other: Changed) -> Changed:
    """Both together."""
    return {
        key: EXACT.add(left.get(key, Decimal()), other.get(key, Decimal())) for key in dict.fromkeys([*left, *other])
    }
