"""Price versions: effective now, next, and the version of a bill's line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from dashboard.backend import Backend
from metering.plan_terms import parse_terms

KEY = ["plan", "model", "meter", "currency"]


@dataclass(frozen=True)
class PriceVersion:
    """A price per one unit, from `effective_from` on. `lsn` is its version: that of its change in the journal."""

    lsn: int
    plan: str
    model: str
    meter: str
    currency: str
    effective_from: datetime
    unit_price: Decimal | None
    state: str
    """in force, next, later, past, ended (deleted while it was in force), or withdrawn (deleted before it began, or
    another change of the same `effective_from` took its place)."""
    terms: str | None = None
    """Tiers or a package, in words; then there is no unit price."""


def read_prices(backend: Backend, now: datetime) -> tuple[PriceVersion, ...]:
    """Every version of every price that the scope's accounts ever had a plan for; nothing before joins has any."""
    versions = _rows(backend, "prices")
    if versions is None:
        return ()
    plans = None if backend.scope.is_all else _plans(backend)
    if plans is not None:
        versions = versions.filter(pl.col("plan").is_in(plans))
    return tuple(_version(row) for row in with_states(versions, now).iter_rows(named=True))


def _version(row: dict[str, Any]) -> PriceVersion:
    terms = row["terms"]
    return PriceVersion(**{**row, "terms": None if terms is None else parse_terms(terms).words})


def with_states(versions: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Versions (streams.PRICES) → the prices among them, with the `state` of each (PriceVersion)."""
    of_instant = [*KEY, "effective_from"]
    ends_at = pl.col("ends_at") if "ends_at" in versions.columns else pl.lit(None, pl.Datetime("us", "UTC"))
    terms = pl.col("terms") if "terms" in versions.columns else pl.lit(None, pl.String)
    known = versions.sort("lsn").with_columns(
        is_last=pl.col("lsn") == pl.col("lsn").filter(~pl.col("deleted")).max().over(of_instant),
        is_gone=pl.col("deleted").last().over(of_instant),
        ends_at=ends_at.last().over(of_instant),
    )
    never_began = pl.col("ends_at").is_null() | (pl.col("ends_at") <= pl.col("effective_from"))
    prices = known.filter(~pl.col("deleted")).with_columns(
        holds=pl.col("is_last") & ~(pl.col("is_gone") & never_began),
    )
    holding = prices.filter("holds")
    begun = holding.filter(pl.col("effective_from") <= now).group_by(KEY).agg(since=pl.max("effective_from"))
    coming = holding.filter(pl.col("effective_from") > now).group_by(KEY).agg(next=pl.min("effective_from"))
    is_newest = pl.col("effective_from") == pl.col("since")
    state = (
        pl.when(~pl.col("holds"))
        .then(pl.lit("withdrawn"))
        .when(is_newest & pl.col("is_gone") & (pl.col("ends_at") <= now))
        .then(pl.lit("ended"))
        .when(is_newest)
        .then(pl.lit("in force"))
        .when(pl.col("effective_from") == pl.col("next"))
        .then(pl.lit("next"))
        .when(pl.col("effective_from") > now)
        .then(pl.lit("later"))
        .otherwise(pl.lit("past"))
    )
    return (
        prices.join(begun, on=KEY, how="left")
        .join(coming, on=KEY, how="left")
        .select("lsn", *KEY, "effective_from", "unit_price", state.alias("state"), terms.alias("terms"))
        .sort(*KEY, "effective_from", "lsn")
    )


def _plans(backend: Backend) -> list[str]:
    """Plans of the scope's accounts, in any version of theirs: old usage names old plans' prices."""
    accounts = _rows(backend, "accounts")
    if accounts is None:
        return []
    return accounts.filter(backend.scope.holds()).get_column("plan").drop_nulls().unique().to_list()


def _rows(backend: Backend, name: str) -> pl.DataFrame | None:
    table = backend.table(name)
    return None if table is None else backend.read(table, name)
