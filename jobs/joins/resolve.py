"""Requests and completions of one batch → outcomes: pairs, and those that have waited until their timeout."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from jobs.joins.pairs import folded, split
from metering.vocabulary import Outcome

_MADE_HERE = ("request_us", "completion_us", "first_us", "until_us", "superseded")


def resolve(rows: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
    """Rows of `memory.carried` → one row per outcome; a row that waits has none.

    Columns: account, request_id, outcome, request_lsn, completion_lsn, user_id, model, family (of what reports it, else
    of the request), status, event_time, received_at
    (when the outcome became a fact), first_received_at (when it would have, had no part of it been a dead letter; null
    where none was), timeout_us (of a match, within which its rows met), and what a configuration names
    as `pairs.paired` has it; null is not reported.

    A row with a `decided_side` was matched in an earlier batch; it only supersedes others. `frontier` None: nobody
    gives up waiting.
    """
    pairs, contested = split(rows)
    frontier_us = pl.lit(frontier, pl.Datetime("us", "UTC")).dt.epoch("us")
    decided = pairs.filter(pl.col("until_us").is_null() | (pl.col("until_us") < frontier_us))
    return as_outcomes(decided if contested.is_empty() else pl.concat([decided, folded(contested, frontier)]))


def as_outcomes(decided: pl.DataFrame) -> pl.DataFrame:
    """What `pairs.paired` found, all of it decided → one row per outcome, as `resolve` has it."""
    begun, ended = pl.col("request_lsn").is_not_null(), pl.col("completion_lsn").is_not_null()
    outcome = (
        pl.when("superseded")
        .then(pl.lit(Outcome.SUPERSEDED.value))
        .when(begun & ended)
        .then(pl.lit(Outcome.MATCHED.value))
        .when(begun)
        .then(pl.lit(Outcome.ABANDONED.value))
        .otherwise(pl.lit(Outcome.ORPHANED.value))
    )
    last_us, instant = pl.max_horizontal("request_us", "completion_us"), pl.Datetime("us", "UTC")
    waited_us = pl.when("superseded").then(0).otherwise(pl.coalesce(pl.col("until_us") - last_us, 0))
    return decided.with_columns(
        outcome=outcome,
        received_at=(last_us + waited_us).cast(instant),
        first_received_at=(pl.col("first_us") + waited_us).cast(instant),
    ).drop(_MADE_HERE)
