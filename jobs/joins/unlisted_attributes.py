"""Prices whose conditions name a column that the configuration no longer lists: they would match nothing.

Their events would silently be billed at another price, so joins stops, and refuses to start again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

import polars as pl
import pyarrow as pa

from jobs.joins.catalog_versions import PRICE_KEY
from jobs.runtime.errors import Refused
from metering.price_attributes import PriceAttribute
from metering.price_models import BEGINS, PricedModels

_SHOWN = 3


def refuse_unlisted(prices: pa.Table, attributes: Iterable[PriceAttribute], now: datetime, late: timedelta) -> None:
    """Every version of the prices (streams.PRICES), and the `price_attributes` of joins.

    Raises Refused where a price applies at `now`, or will, or ended less than `late` ago, and one of its conditions
    names an unlisted column or band: usage from its time may still come.
    """
    listed = {attribute.name: attribute for attribute in attributes}
    depending = defaultdict(list)
    every = pl.DataFrame(prices)
    of_conditions = holding(every.filter(pl.col("model").str.contains(BEGINS, literal=True)), now, now - late)
    for price in of_conditions.unique(PRICE_KEY, keep="first").sort(PRICE_KEY).iter_rows(named=True):
        # What cannot be read prices nothing.
        for priced in PricedModels.among([price["model"]]).every:
            for column, value in priced.conditions if priced.prices_usage else ():
                if column not in listed or not listed[column].has(value):
                    what = f"{value} as a band of {column}" if column in listed else column
                    depending[what].append(f"{price['meter']} of {price['model']} on plan {price['plan']}")
    if depending:
        what, of_column = min(depending.items())
        others = f" and {len(of_column) - _SHOWN} more" if len(of_column) > _SHOWN else ""
        raise Refused(
            f"price_attributes does not list {what}, but prices depend on it: {', '.join(of_column[:_SHOWN])}{others}"
            ". Without it no event matches them, and each is billed at another price. List it again. To do without it, "
            "delete these prices (`weir catalog delete price`) while joins runs, and take it out when no usage of that "
            f"time can come any more: after {late.days} days (`rejoin_seconds`)"
        )


def holding(prices: pl.DataFrame, now: datetime, since: datetime) -> pl.DataFrame:
    """The newest versions of prices that begin after `now`, or are the last to have begun and have not ended by
    `since`; by their beginning.
    """
    newest = prices.sort("lsn").unique([*PRICE_KEY, "effective_from"], keep="last")
    never_held = pl.col("deleted") & (pl.col("ends_at") <= pl.col("effective_from"))
    ends_at = pl.when("deleted").then("ends_at")
    begun = pl.col("effective_from") <= now
    standing = newest.filter(~never_held.fill_null(value=False)).sort("effective_from")
    is_newest = ~begun | (pl.col("effective_from") == pl.col("effective_from").filter(begun).max().over(PRICE_KEY))
    return standing.filter(is_newest & (ends_at.is_null() | (ends_at > since)))
