"""Outcomes → the members that they add to periods, at the price of the period's start.

A period is a day or a month of the account's calendar, as `day` of usage is. Plan, currency and the account's columns
in price conditions are also those of its start. So all members of a period of one model have one price, whenever in
the period they occurred.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog_versions import AT, Versions
from jobs.joins.credits import CREDITS
from jobs.joins.memory import condition_of, quantity_of
from jobs.joins.pricing import prices_of
from jobs.joins.quantities import BILLED, QUANTITIES, is_counted
from jobs.joins.versions_in_use import VersionsInUse
from jobs.usage_members import ENTRY, MEMBERS, written
from metering.limits import MAX_NAME_BYTES
from metering.meters import Declaration
from metering.period_meters import Aggregation, Period
from metering.price_attributes import PriceAttribute

_FOUND = {**QUANTITIES, "aggregation": pl.String(), "member": pl.String()}


def members(
    outcomes: pl.DataFrame,
    meters: Iterable[Declaration],
    days: BillingDays,
    accounts: Versions | VersionsInUse,
    prices: Versions | VersionsInUse,
    *,
    attributes: Sequence[PriceAttribute] = (),
    seen_from: int | None = None,
) -> pl.Series:
    """The column MEMBERS of each outcome (`resolve`), in their order; `seen_from` and `attributes` as in `price`.

    An outcome is a member if it is billed, matches the meter's `where`, and has the meter's column as a text or as a
    number of at least 0. A credit of all that the meter bills (`credits`) removes it; a credit of a quantity does not.
    """
    declared = [meter for meter in meters if meter.of_period is not None]
    known = _Known(days, accounts, prices, attributes, seen_from)
    entries = [
        _of_period(outcomes, period, of_period, known)
        for period in Period
        if (of_period := [meter for meter in declared if meter.of_period and meter.of_period.period is period])
    ]
    if not entries or outcomes.is_empty():
        return pl.Series(MEMBERS, [None] * len(outcomes), pl.String)
    listed = written(pl.concat(entries).sort("row", "meter"))
    rows = outcomes.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    return rows.join(listed, on="row", how="left", maintain_order="left")[MEMBERS]


@dataclass(frozen=True)
class _Known:
    """Calendars, accounts and prices as the caller knows them."""

    days: BillingDays
    accounts: Versions | VersionsInUse
    prices: Versions | VersionsInUse
    attributes: Sequence[PriceAttribute]
    seen_from: int | None


def _of_period(outcomes: pl.DataFrame, period: Period, meters: Sequence[Declaration], known: _Known) -> pl.DataFrame:
    """(row, ENTRY) of the meters of a day, or of a month."""
    found = pl.concat([_found(outcomes, meter) for meter in meters])
    concerned = outcomes.with_row_index("place").filter(pl.col("place").is_in(found["row"].implode()))
    bounds = known.days.periods(concerned, period, known.seen_from)
    at = concerned.with_columns(
        decided_lsn=pl.max_horizontal("request_lsn", "completion_lsn"),
        event_us=bounds["starts_at"].dt.epoch("us"),
    )
    contracted = known.accounts.as_of(at, known.seen_from).drop("version_lsn")
    places = concerned.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), "place")
    contracts = contracted.with_row_index("row").select("row", "outcome", "plan", "model", "currency", *AT)
    put = found.rename({"row": "place"}).join(places, on="place").join(contracts, on="row")
    priced = prices_of(
        put.select("meter", "quantity", *contracts.columns), contracted, known.prices, known.attributes, known.seen_from
    )
    costs = priced.select("row", "meter", "unit_price", price_version="version_lsn")
    return (
        put.join(costs, on=["row", "meter"], how="left")
        .join(pl.concat([places.select("row"), bounds], how="horizontal"), on="row")
        .with_columns(
            pl.lit(period.value).alias("period"),
            value=pl.when(pl.col("aggregation") != Aggregation.UNIQUE.value).then("quantity"),
        )
        .select(pl.col("place").alias("row"), *[pl.col(name).cast(kind) for name, kind in ENTRY.items()])
    )


def _found(outcomes: pl.DataFrame, meter: Declaration) -> pl.DataFrame:
    """(row, meter, quantity, aggregation, member) of the outcomes that are members of a meter's periods."""
    of = meter.of_period
    assert of is not None
    is_member = pl.col("outcome").is_in(list(BILLED)) & is_counted(meter)
    if of.is_of_numbers:
        number = pl.col(quantity_of(of.column))
        is_member &= (number >= 0).fill_null(value=False)
        quantity, member = number, pl.lit(None, pl.String)
    else:
        text = pl.col(condition_of(of.column))
        is_member &= text.is_not_null()
        quantity, member = pl.lit(1), text
    rows = outcomes.with_row_index("row").filter(is_member & ~_is_credited(outcomes, meter))
    found = rows.select(
        "row",
        pl.lit(meter.name).alias("meter"),
        quantity.alias("quantity"),
        pl.lit(of.aggregation.value).alias("aggregation"),
        member.alias("member"),
    ).cast(_FOUND)  # type: ignore[arg-type]
    return found.with_columns(_short(found["member"]))


def _is_credited(outcomes: pl.DataFrame, meter: Declaration) -> pl.Expr:
    """Whether a credit takes back all that the meter bills of an outcome."""
    if CREDITS not in outcomes.columns:
        return pl.lit(value=False)
    is_all = (pl.element().struct.field("meter") == meter.name) & pl.element().struct.field("credit").is_null()
    return pl.col(CREDITS).list.eval(is_all).list.any().fill_null(value=False)


def _short(texts: pl.Series) -> pl.Series:
    """Texts short enough for an index of Postgres: a longer text becomes its digest."""
    if texts.null_count() == len(texts) or (texts.str.len_bytes().max() or 0) <= MAX_NAME_BYTES:  # type: ignore[operator]
        return texts
    return texts.map_elements(
        lambda text: (
            text if len(text.encode()) <= MAX_NAME_BYTES else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        ),
        return_dtype=pl.String,
    )
