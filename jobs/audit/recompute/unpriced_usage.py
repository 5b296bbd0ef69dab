"""Usage that waits for a price that exists by now: the reception from which an audit must start to find it all."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import polars as pl

from jobs.audit.tables.database import connected
from jobs.joins.catalog_versions import by_reported_model
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.pricing import BILLED_IN_WHOLE
from metering.windows import MINUTE

EARLIER = timedelta(days=2)
_WAITS = f"coalesce(price_version = {BILLED_IN_WHOLE}, true)"
_GROUPS = f"""
SELECT account, model, meter, min(window_start), max(window_start) FROM (
    SELECT account, model, meter, window_start FROM usage_windows WHERE {_WAITS} AND quantity <> 0
    UNION ALL
    SELECT account, model, meter, window_start FROM stragglers WHERE {_WAITS}
    GROUP BY window_start, account, model, meter, currency HAVING sum(quantity) <> 0
    UNION ALL
    SELECT account, model, meter, first_window FROM usage_days JOIN meters USING (meter)
    WHERE period IS NOT NULL AND price_version IS NULL AND quantity <> 0
) AS waiting GROUP BY 1, 2, 3
"""
_INSTANT = pl.Datetime("us", "UTC")
_WAITING = pl.Schema(
    {**dict.fromkeys(("account", "model", "meter"), pl.String()), **dict.fromkeys(("first", "last"), _INSTANT)}
)
_ACCOUNT, _PRICE = ("account", "plan", "currency"), ("plan", "model", "meter", "currency")


def unpriced_from(postgres_url: str, tables: str) -> datetime | None:
    """The start of the second UTC day before the earliest window with usage whose price has come; None without any.

    Some usage waits for ever: of an unknown account, of a meter without a price on its plan, of a completion without
    its request. There is something to bill only where a version of a price applies, of a plan that the account ever
    had. An event is received at most a day before it occurs, and waits for its partner a day at most, so everything
    that belongs to such usage was received since then. Raises `psycopg.Error` when the database does not answer.
    """
    with connected(postgres_url) as database:
        groups = pl.DataFrame(database.execute(_GROUPS).fetchall(), schema=_WAITING, orient="row")
    accounts, prices = _versions(tables, Table.ACCOUNTS, _ACCOUNT), _versions(tables, Table.PRICES, _PRICE)
    begins = prices.group_by(_PRICE).agg(pl.min("effective_from"))
    found = (
        groups.join(accounts.select(_ACCOUNT).unique(), on="account")
        .join(by_reported_model(begins, groups["model"]), on=_PRICE)
        .filter(pl.col("effective_from") < pl.col("last") + MINUTE)
        .select(pl.max_horizontal("first", "effective_from").min())
        .item()
    )
    if found is None:
        return None
    return datetime.combine(found.astimezone(UTC).date(), time(), UTC) - EARLIER


def _versions(tables: str, table: Table, key: tuple[str, ...]) -> pl.DataFrame:
    """All that joins has, but for deletions."""
    columns = [*key, "effective_from", "deleted"]
    found = open_table(tables, table)
    if found is None:
        return pl.DataFrame(schema=pl.Schema({**dict.fromkeys(key, pl.String()), "effective_from": _INSTANT}))
    return pl.DataFrame(found.to_pyarrow_table(columns=columns)).filter(~pl.col("deleted")).drop("deleted")
