"""Outcomes for which a version of an account or a price came too late. They are few, so only they are priced again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from jobs.audit.recompute.expected import PARTS, Pinned
from jobs.joins.catalog_versions import Versions, by_reported_model


def priced_later(outcomes: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Outcomes (recomputed.SAID) → those that a later version may concern: it begins, or ends the earlier one,
    before they occurred.

    What it says may be the same all the same.
    """
    at = outcomes.with_columns(decided_lsn=pl.max_horizontal(PARTS), event_us=pl.col("event_time").dt.epoch("us"))
    prices = pinned.prices_known
    if prices.priced_models:
        prices = replace(prices, every=by_reported_model(prices.every, at["model"], prices.priced_models))
    is_late = [
        _concerned(at, pinned.accounts_known, ("account",), pinned.position),
        # At the start of a period the account may have had another plan.
        _concerned(at, prices, ("model",) if pinned.has_periods else ("plan", "model"), pinned.position),
    ]
    return outcomes.filter(is_late[0] | is_late[1])


def _concerned(at: pl.DataFrame, versions: Versions, key: Sequence[str], position: int) -> pl.Series:
    """Whether a version of the same `key`, from the row's `decided_lsn` on and before `position`, may concern it."""
    counts = ~pl.col("withdrawn") if versions.withdraws else pl.lit(value=True)
    known = versions.every.filter((pl.col("lsn") < position) & counts).sort("lsn", descending=True)
    earliest = known.select(*key, "lsn", earliest_us=pl.col("concerns_us").cum_min().over(key)).sort("lsn")
    met = (
        at.with_row_index("row")
        .select("row", *key, "decided_lsn", "event_us")
        .sort("decided_lsn")
        .join_asof(
            earliest,
            left_on="decided_lsn",
            right_on="lsn",
            by=list(key),
            strategy="forward",
            check_sortedness=False,
        )
        .sort("row")
    )
    return (met["earliest_us"] <= met["event_us"]).fill_null(value=False)
