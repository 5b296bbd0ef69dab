"""`price_ladders` in Postgres: each version of prices that have, or had, tiers or packages.

Bills compute the lines of such prices from it. Where a plan has, or had, terms of its own (`metering.plan_terms`), it
has every version of every price: they say by which plan usage was priced. It is written before usage is priced by a
version, and never changed: a version is one row of the journal. A driver that starts writes again what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.joins.catalog_versions import PRICE_KEY
from jobs.joins.unlisted_attributes import holding
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.session import Session
from metering.meters import Declaration
from metering.plan_terms import PLAN_MODEL

COLUMNS = ("price_version", *PRICE_KEY, "effective_from", "unit_price", "terms")
_STORE = f"""
INSERT INTO price_ladders ({", ".join(COLUMNS)}) VALUES ({", ".join(f"%({name})s" for name in COLUMNS)})
ON CONFLICT (price_version) DO NOTHING
"""


def ladders(prices: pa.Table) -> pl.DataFrame:
    """Every version (streams.PRICES) → those of each plan, model, meter and currency of which any has terms: COLUMNS.

    Versions with a unit price are among them: their units lie below those of the versions after them. Where any is of
    a plan itself, all versions are.
    """
    laddered = prices.filter(pc.and_(pc.is_valid(prices["terms"]), pc.invert(prices["deleted"])))
    keys = pl.DataFrame(laddered.select(list(PRICE_KEY))).unique()
    if keys.is_empty():
        return pl.DataFrame(schema=[*COLUMNS])
    rows = pl.DataFrame(prices).filter(~pl.col("deleted")).rename({"lsn": "price_version"})
    if (keys["model"] == PLAN_MODEL).any():
        return rows.select(COLUMNS).sort("price_version")
    return rows.join(keys, on=list(PRICE_KEY), how="semi").select(COLUMNS).sort("price_version")


def refuse_period_tiers(prices: pa.Table, meters: Iterable[Declaration], now: datetime, late: timedelta) -> None:
    """Raises Refused where a price of a meter that bills whole periods has terms: only its members could price it.

    Of prices that apply at `now`, or will, or ended less than `late` ago: others price no usage that may still come.
    """
    of_periods = {meter.name for meter in meters if meter.of_period}
    if not of_periods:
        return
    # The row of a deletion has no terms itself.
    has_terms = pl.when(~pl.col("deleted")).then(pl.col("terms").is_not_null())
    of_instant = [*PRICE_KEY, "effective_from"]
    of_usage = pl.DataFrame(prices).filter(pl.col("model") != PLAN_MODEL)
    every = of_usage.sort("lsn").with_columns(has_terms=has_terms.forward_fill().over(of_instant))
    found = holding(every, now, now - late).filter("has_terms", pl.col("meter").is_in(list(of_periods)))
    if len(found):
        price = found.row(0, named=True)
        raise Refused(
            f"the meter {price['meter']} bills whole periods, but its price of {price['model']} on plan "
            f"{price['plan']} has tiers or packages, which such a meter cannot have: give it a unit price (`weir "
            "catalog apply`), or declare the meter without a period"
        )


class PriceLadders:
    """The versions that this driver has stored."""

    def __init__(self, postgres_url: str) -> None:
        self._url = postgres_url
        self._stored: set[int] = set()

    def store(self, prices: pa.Table) -> None:
        """Store the ladders of all versions. Raises `psycopg.Error` when the database does not answer."""
        if prices["terms"].null_count == len(prices):
            return
        new = ladders(prices).filter(~pl.col("price_version").is_in(list(self._stored)))
        if new.is_empty():
            return
        with Session.to(self._url, "weir joins ladders") as database, database.transaction(), database.cursor() as rows:
            rows.executemany(_STORE, new.to_dicts())
        self._stored.update(new["price_version"])
