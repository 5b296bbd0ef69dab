"""Requests and completions of one batch → outcomes: what they are together, and who has waited long enough."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from jobs.joins.pairs import folded, split
from metering.meters import REPORTED, Meter
from metering.words import Outcome

OUTCOME = (
    *("account", "request_id", "outcome", "request_lsn", "completion_lsn", "user_id", "model", "status"),
    *("event_time", "received_at", *Meter, "timeout_us"),
)


def resolve(rows: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
    """Rows of `memory.CARRIED` → one row per outcome (OUTCOME); a row that waits has none.

    A row with a `decided_side` was matched in an earlier batch; it only supersedes others. `frontier` None: nobody
    gives up waiting. `received_at` is when the outcome became a fact; per meter its quantity: null is not reported.
    `timeout_us`: of a match, within which its rows met.
    """
    pairs, contested = split(rows)
    each = pairs if contested.is_empty() else pl.concat([pairs, folded(contested)])
    begun, ended = pl.col("request_lsn").is_not_null(), pl.col("completion_lsn").is_not_null()
    last_us = pl.max_horizontal("request_us", "completion_us")
    over_us = last_us + pl.col("timeout_us")
    frontier_us = pl.lit(frontier, pl.Datetime("us", "UTC")).dt.epoch("us")
    outcome = (
        pl.when("superseded")
        .then(pl.lit(Outcome.SUPERSEDED.value))
        .when(begun & ended)
        .then(pl.lit(Outcome.MATCHED.value))
        .when(over_us < frontier_us)
        .then(pl.when(begun).then(pl.lit(Outcome.ABANDONED.value)).otherwise(pl.lit(Outcome.ORPHANED.value)))
    )
    is_alone = pl.col("outcome").is_in([Outcome.ABANDONED.value, Outcome.ORPHANED.value])
    is_billed = pl.col("outcome").is_in([Outcome.MATCHED.value, Outcome.ABANDONED.value])
    return (
        each.with_columns(outcome.alias("outcome"))
        .filter(pl.col("outcome").is_not_null())
        .with_columns(
            pl.when(is_alone).then(over_us).otherwise(last_us).cast(pl.Datetime("us", "UTC")).alias("received_at"),
            *[is_billed.cast(pl.Int64).alias(meter) for meter in Meter if meter not in REPORTED],
            *[pl.when("superseded").then(0).otherwise(pl.col(meter)).alias(meter) for meter in REPORTED],
        )
        .select(OUTCOME)
    )
