"""Prices of periods that are read only in part: they stay, so that no member counts at two prices."""

from __future__ import annotations

import polars as pl

from jobs.audit.recompute.expected import OUTCOME, Pinned
from jobs.usage_members import MEMBERS, members, written
from metering.lateness import MAX_FUTURE

_COST = ("currency", "price_version", "unit_price", "starts_at", "ends_at")
"""The price of a member, and the period that it is for."""
_KEY = (*OUTCOME, "model")
_ENTRY = ("row", "meter", "first_day")


def with_kept_prices(must: pl.DataFrame, now: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Usage that must stand, where members of a period that is read only in part have the price that they have `now`.

    Both have OUTCOME, model and MEMBERS. A period is whole where all that may have been received of it is examined.
    """
    is_part = _is_read_in_part(pinned)
    if is_part is None or must[MEMBERS].null_count() == len(must):
        return must
    numbered = must.select(*_KEY, MEMBERS).with_row_index("row")
    entries = members(numbered.select("row", MEMBERS)).with_columns(is_part=is_part)
    places = numbered.select("row", *_KEY).join(now.select(*_KEY, MEMBERS), on=_KEY, how="inner", nulls_equal=True)
    stands = members(places.select("row", MEMBERS)).select(*_ENTRY, *_COST, stands=True)
    both = entries.join(stands, on=_ENTRY, how="left", suffix="_now", maintain_order="left")
    is_kept = pl.col("is_part") & pl.col("stands").fill_null(value=False)
    if not both.select(is_kept.any()).item():
        return must
    kept = both.with_columns(pl.when(is_kept).then(f"{name}_now").otherwise(name).alias(name) for name in _COST)
    texts = written(kept.select("row", *entries.drop("row", "is_part").columns))
    rows = numbered.select("row").join(texts, on="row", how="left", maintain_order="left")
    return must.with_columns(rows[MEMBERS])


def _is_read_in_part(pinned: Pinned) -> pl.Expr | None:
    """Whether rows of a member's period may not be examined; None: all are, of all periods."""
    conditions = []
    if (since := pinned.priced_since or pinned.since) is not None:
        conditions.append(pl.col("starts_at") - MAX_FUTURE < since)
    if pinned.until is not None:
        conditions.append(pl.col("ends_at") > pinned.until)
    return pl.any_horizontal(conditions) if conditions else None
