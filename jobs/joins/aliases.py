"""The other model whose prices a reported model has: of the aliases of its name, the latest to begin."""

from __future__ import annotations

import polars as pl

from jobs.joins.catalog_versions import AT, BEGINS_US, Versions
from jobs.joins.versions_in_use import VersionsInUse
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER


def aliased(rows: pl.DataFrame, prices: Versions | VersionsInUse, seen_from: int | None) -> pl.DataFrame:
    """Rows (row, plan, model, decided_lsn, event_us, …) → (row, aliased): those with an alias in force.

    An alias is a row among the prices and applies like a price: once it has ended, none applies until another begins.
    Of two that began at once, the first by name applies.
    """
    none = pl.DataFrame(schema={"row": rows.schema["row"], "aliased": pl.String()})
    every = [
        (name, alias.text, alias.aliased) for name, several in prices.priced_models.aliases.items() for alias in several
    ]
    if not every:
        return none
    names = pl.DataFrame(every, schema=dict.fromkeys(("model", "text", "aliased"), pl.String()), orient="row")
    candidates = rows.select("row", "plan", "model", *AT).join(names, on="model", how="inner").unique(["row", "text"])
    if candidates.is_empty():
        return none
    of_rows = (
        candidates.drop("model")
        .rename({"text": "model"})
        .with_columns(meter=pl.lit(ALIAS_METER), currency=pl.lit(ALIAS_CURRENCY))
    )
    return (
        prices.as_of(of_rows, seen_from)
        .filter(pl.col(BEGINS_US).is_not_null())
        .sort(["row", BEGINS_US, "aliased"], descending=[False, True, False])
        .unique("row", keep="first", maintain_order=True)
        .filter(pl.col("version_lsn").is_not_null())
        .select("row", "aliased")
    )
