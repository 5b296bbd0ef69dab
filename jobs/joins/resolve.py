"""Requests and completions of one batch → outcomes: what they are together, and who has waited long enough."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from jobs.joins.pairs import folded, split
from metering.words import Outcome

_MADE_HERE = ("request_us", "completion_us", "first_us", "superseded")


def resolve(rows: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
    """Rows of `memory.carried` → one row per outcome; a row that waits has none.

    Columns: account, request_id, outcome, request_lsn, completion_lsn, user_id, model, status, event_time, received_at
    (when the outcome became a fact), first_received_at (when it would have, had no part of it been a dead letter; null
    where none was), timeout_us (of a match, within which its rows met), and what a configuration names
    as `pairs.paired` has it; null is not reported.

    A row with a `decided_side` was matched in an earlier batch; it only supersedes others. `frontier` None: nobody
    gives up waiting.
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
    waited_us = pl.when(is_alone).then("timeout_us").otherwise(0)
    instant = pl.Datetime("us", "UTC")
    return (
        each.with_columns(outcome.alias("outcome"))
        .filter(pl.col("outcome").is_not_null())
        .with_columns(
            received_at=(last_us + waited_us).cast(instant),
            first_received_at=(pl.col("first_us") + waited_us).cast(instant),
        )
        .drop(_MADE_HERE)
    )
