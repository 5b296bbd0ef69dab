"""Outcomes → priced usage rows: the contract and prices in force at `event_time`, as known when it was decided.

`catalog_versions` finds the version that applies. Arrow multiplies, because Polars keeps 12 decimals of a product for
any scale of its factors.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.joins.aliases import aliased
from jobs.joins.attribute_values import conventions_of, value_of
from jobs.joins.catalog_versions import AT, CONTRACT, PRICE_KEY, Versions
from jobs.joins.containment import LISTED, billed_once
from jobs.joins.credits import CREDITS, UNCOUNTED, counted, credited
from jobs.joins.dimensions import dimensions
from jobs.joins.quantities import BILLED, quantities
from jobs.joins.versions_in_use import VersionsInUse
from jobs.streams import METERED, QUANTITY, UNIT_PRICE
from metering.meters import Declaration
from metering.price_attributes import PriceAttribute
from metering.price_models import PricedModels
from metering.vocabulary import UsageCause


def price(
    outcomes: pl.DataFrame,
    meters: Sequence[Declaration],
    accounts: Versions | VersionsInUse,
    prices: Versions | VersionsInUse,
    *,
    named: Sequence[str] = (),
    attributes: Sequence[PriceAttribute] = (),
    seen_from: int | None = None,
) -> pa.Table:
    """Outcomes (`resolve`) → the same rows with plan, currency, sign 1, cause `stream`, `corrects_lsns`, `meters` and
    `dimensions`: those that are `named`.

    Without an account, a model, a price or a quantity, and for what is not billed, price and amount are null. Who looks
    back from lsn `seen_from` knows the versions before it; the stream those before what decided the outcome. Of the
    account dimensions always have what the stream knew: usage under one stays there when its price changes.
    `attributes` are what conditions of prices can name; one on anything else is met by no event. A column of the
    account counts there as its plan does, by every known version: an audit also prices by late ones.
    Outcomes with CREDITS have that much less, and 0 of meters that are UNCOUNTED.
    """
    decided = pl.max_horizontal("request_lsn", "completion_lsn").alias("decided_lsn")
    at = outcomes.with_columns(decided, event_us=pl.col("event_time").dt.epoch("us"))
    contracted = accounts.as_of(at, seen_from).drop("version_lsn")
    conditional = contracted
    texts = [name for name in accounts.values if name not in CONTRACT]
    if texts and seen_from is not None:
        contracted = contracted.with_columns(accounts.as_of(at).select(texts))
    terms = contracted.with_row_index("row").select("row", "outcome", "plan", "model", "currency", *AT)
    metered = quantities(outcomes, meters).join(terms, on="row", how="left", maintain_order="left")
    has_price = pl.col("outcome").is_in(list(BILLED)) & pl.col("quantity").is_not_null()
    units = prices_of(metered.filter(has_price), conditional, prices, attributes, seen_from)
    unpriced = [pl.lit(None, units.schema[name]).alias(name) for name in ("version_lsn", "unit_price")]
    rest = metered.filter(~has_price).with_columns(unpriced).select(LISTED)
    listed = counted(credited(billed_once(pl.concat([units, rest]), outcomes, meters), outcomes), outcomes)
    made = contracted.drop(*AT, CREDITS, UNCOUNTED, strict=False).with_columns(
        pl.lit(1, pl.Int32).alias("sign"),
        pl.lit(UsageCause.STREAM.value).alias("cause"),
        pl.lit(None, pl.List(pl.Int64)).alias("corrects_lsns"),
        dimensions(named),
    )
    return made.to_arrow().append_column("meters", meter_lists(listed, len(outcomes)))


def prices_of(
    metered: pl.DataFrame,
    outcomes: pl.DataFrame,
    prices: Versions | VersionsInUse,
    attributes: Sequence[PriceAttribute],
    seen_from: int | None,
) -> pl.DataFrame:
    """Rows and meters with what they are priced by, and the outcomes with what their accounts say → LISTED.

    Of the prices that are for an event it is the first that holds (`PricedModels.candidates`).
    """
    known = prices.priced_models
    if not known:
        return prices.as_of(metered, seen_from).select(LISTED)
    conventions = conventions_of(outcomes, attributes)
    # Conditions use few of millions of values: all others count as missing.
    priced_by = {
        attribute.name: pl.when(value.is_in(list(known.values[attribute.name]))).then(value)
        for attribute, value in ((attribute, value_of(attribute, conventions)) for attribute in attributes)
        if attribute.name in known.values
    }
    of_rows = outcomes.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        *[value.alias(f"attribute:{name}") for name, value in priced_by.items()],
    )
    of_rows = of_rows.join(aliased(metered, prices, seen_from), on="row", how="left", maintain_order="left")
    attributed = metered.join(of_rows, on="row", how="left", maintain_order="left")
    wanted = _candidates(attributed, prices, known, list(priced_by))
    found = (
        attributed.join(wanted, on=[name for name in wanted.columns if name in attributed.columns], nulls_equal=True)
        .drop("model")
        .rename({"candidate": "model"})
    )
    applying = prices.as_of(found, seen_from).filter(pl.col("version_lsn").is_not_null())
    is_only, several = pl.col("candidates") == 1, pl.col("candidates") > 1
    first = applying.filter(several).sort("row", "meter", "rank").unique(["row", "meter"], keep="first")
    holding = pl.concat([applying.filter(is_only), first]).select("row", "meter", "version_lsn", "unit_price")
    return metered.join(holding, on=["row", "meter"], how="left", maintain_order="left").select(LISTED)


def _candidates(
    attributed: pl.DataFrame, prices: Versions | VersionsInUse, known: PricedModels, conditions: Sequence[str]
) -> pl.DataFrame:
    """What events say that decides on their price, each combination once, with the models of the prices that there are
    for it: (model, aliased, `attribute:…` of `conditions`, plan, meter, currency, `candidate`, `rank`, `candidates`).

    `candidates` is how many. A price that exists need not apply yet, so the one of the lowest `rank` may not.
    """
    by = ["model", "aliased", *(f"attribute:{name}" for name in conditions)]
    contract = [name for name in PRICE_KEY if name != "model"]
    of_events = attributed.select(*by, *contract).unique()
    tried = [
        (model, other, *values, candidate, rank)
        for model, other, *values in of_events.select(by).unique().iter_rows()
        for rank, candidate in enumerate(known.candidates(model, dict(zip(conditions, values, strict=True)), other))
    ]
    schema = {**dict.fromkeys((*by, "candidate"), pl.String()), "rank": pl.Int64()}
    candidates = of_events.join(pl.DataFrame(tried, schema=schema, orient="row"), on=by, nulls_equal=True)
    exists = prices.have(candidates.select(*contract, model="candidate"))
    return candidates.filter(exists).with_columns(candidates=pl.len().over(of_events.columns))


def meter_lists(listed: pl.DataFrame, rows: int) -> pa.Array:
    """(row, meter, quantity, version_lsn, unit_price), sorted by row → the list (streams.METERED) of each of `rows`."""
    quantity = listed["quantity"].to_arrow().cast(QUANTITY)
    unit_price = listed["unit_price"].to_arrow().cast(UNIT_PRICE)
    entries = pa.StructArray.from_arrays(
        [
            listed["meter"].to_arrow().cast(pa.string()),
            quantity,
            listed["version_lsn"].to_arrow(),
            unit_price,
            pc.multiply(quantity, unit_price),
        ],
        fields=list(METERED),
    )
    counts = listed.group_by("row").len()
    lengths = (
        pl.select(pl.int_range(rows, dtype=pl.UInt32).alias("row"))
        .join(counts, on="row", how="left", maintain_order="left")["len"]
        .fill_null(0)
    )
    offsets = pl.concat([pl.Series([0], dtype=pl.Int32), lengths.cum_sum().cast(pl.Int32)])
    return pa.ListArray.from_arrays(offsets.to_arrow().cast(pa.int32()), entries)
