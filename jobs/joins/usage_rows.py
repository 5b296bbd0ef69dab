"""Outcomes → rows of `usage`: with their price, their day and their number."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog_versions import Versions
from jobs.joins.config import JoinsConfig
from jobs.joins.members import members
from jobs.joins.pricing import price
from jobs.joins.versions_in_use import VersionsInUse
from jobs.streams import INSTANT, USAGE
from jobs.usage_members import MEMBERS


def priced(
    outcomes: pl.DataFrame,
    config: JoinsConfig,
    accounts: Versions | VersionsInUse,
    prices: Versions | VersionsInUse,
    days: BillingDays,
) -> pa.Table:
    """Outcomes (`resolve`) with their price, their day, and the members that they add (MEMBERS)."""
    declared, attributes = config.declared, config.attributes
    costs = price(outcomes, declared, accounts, prices, named=config.dimensions, attributes=attributes)
    dated = costs.append_column("day", days.days(outcomes).to_arrow())
    if not any(meter.of_period for meter in declared):
        return dated
    of_periods = members(outcomes, declared, days, accounts, prices, attributes=attributes)
    return dated.append_column(MEMBERS, of_periods.to_arrow())


def usage_rows(
    priced: pa.Table, first_lsn: int, logged_at: datetime, rules: str | None, frontier: datetime | None = None
) -> pa.Table:
    """Priced outcomes as rows of `usage`; the first one keeps `rules`. What only earlier releases filled is null."""
    count = len(priced)
    lsn = pl.int_range(first_lsn, first_lsn + count, eager=True).to_arrow()
    made = {
        "lsn": lsn,
        "log_date": pa.repeat(pa.scalar(logged_at.date(), pa.date32()), count),
        "logged_at": pa.repeat(pa.scalar(logged_at, INSTANT), count),
        "frontier": pa.repeat(pa.scalar(frontier, INSTANT), count),
        "rules": pc.if_else(pc.equal(lsn, first_lsn), pa.scalar(rules, pa.string()), pa.scalar(None, pa.string())),
    }
    made_columns = {name: priced[name] for name in priced.column_names} | made
    columns = [
        made_columns[field.name].cast(field.type) if field.name in made_columns else pa.nulls(count, field.type)
        for field in USAGE
    ]
    return pa.table(columns, schema=USAGE)
