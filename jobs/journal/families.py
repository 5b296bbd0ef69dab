"""The `family` of a journal row: how it takes part in outcomes. Rows from before the column get it from their type."""

from __future__ import annotations

import polars as pl

from metering.vocabulary import Disposition, EventType, Family

EARLIER = {
    EventType.REQUEST.value: Family.REQUEST.value,
    EventType.COMPLETION.value: Family.COMPLETION.value,
    EventType.USAGE.value: Family.BOTH.value,
    EventType.HEARTBEAT.value: Family.HEARTBEAT.value,
}
"""The families of rows that versions before contracts wrote: they knew these types and no other."""

_CASES = " ".join(f"WHEN '{kind}' THEN '{family}'" for kind, family in EARLIER.items())
FAMILY_SQL = f"coalesce(family, CASE type {_CASES} END)"
"""`family` for Spark and Postgres."""


def family() -> pl.Expr:
    """Of rows with `family` and `type`; null: of a type without a contract."""
    earlier = pl.col("type").replace_strict(EARLIER, default=None, return_dtype=pl.String)
    return pl.coalesce(pl.col("family"), earlier).alias("family")


def is_reversal() -> pl.Expr:
    """Whether a row of the journal (`family`, `type`, `disposition`, `request_id`) is a reversal that counts."""
    is_accepted = (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("request_id").is_not_null()
    return is_accepted & (family() == Family.REVERSAL.value).fill_null(value=False)
