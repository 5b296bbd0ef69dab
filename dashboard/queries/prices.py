"""Price versions: those in force now, the next ones, and the one that a bill's line names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import polars as pl

from dashboard.backend import Backend

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
    unit_price: Decimal
    state: str
    """in force, next, past, or withdrawn (another change of the same `effective_from` took its place)."""


def read_prices(backend: Backend, now: datetime) -> tuple[PriceVersion, ...]:
    """Every version of every price that the scope's accounts ever had a plan for; nothing before joins has any."""
    versions = _rows(backend, "prices")
    if versions is None:
        return ()
    plans = None if backend.scope.is_all else _plans(backend)
    if plans is not None:
        versions = versions.filter(pl.col("plan").is_in(plans))
    latest = versions.sort("lsn").with_columns(
        is_last=pl.col("lsn") == pl.max("lsn").over([*KEY, "effective_from"]),
    )
    holding = latest.filter(pl.col("is_last") & ~pl.col("deleted"))
    in_force = holding.filter(pl.col("effective_from") <= now).group_by(KEY).agg(since=pl.max("effective_from"))
    coming = holding.filter(pl.col("effective_from") > now).group_by(KEY).agg(next=pl.min("effective_from"))
    state = (
        pl.when(~pl.col("is_last"))
        .then(pl.lit("withdrawn"))
        .when(pl.col("effective_from") == pl.col("since"))
        .then(pl.lit("in force"))
        .when(pl.col("effective_from") == pl.col("next"))
        .then(pl.lit("next"))
        .when(pl.col("effective_from") > now)
        .then(pl.lit("later"))
        .otherwise(pl.lit("past"))
    )
    shown = (
        latest.filter(~pl.col("deleted"))
        .join(in_force, on=KEY, how="left")
        .join(coming, on=KEY, how="left")
        .select("lsn", *KEY, "effective_from", "unit_price", state.alias("state"))
        .sort(*KEY, "effective_from", "lsn")
    )
    return tuple(PriceVersion(*row) for row in shown.iter_rows())


def _plans(backend: Backend) -> list[str]:
    """Plans of the scope's accounts, in any version of theirs: old usage names old plans' prices."""
    accounts = _rows(backend, "accounts")
    if accounts is None:
        return []
    return accounts.filter(backend.scope.holds()).get_column("plan").drop_nulls().unique().to_list()


def _rows(backend: Backend, name: str) -> pl.DataFrame | None:
    table = backend.table(name)
    return None if table is None else backend.read(table, name)
