"""Outcomes → the rows that patterns look at, staged beside panes: one for each pattern and outcome."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.analytics.config import LSNS
from jobs.analytics.panes import NUMBER
from metering.patterns.pattern import Pattern

STAGED_AS = "pattern:"
"""The `view` of a staged row is this and the pattern's name: no view has such a name."""
LSN = "#lsn"
"""Where a staged row has the journal's lsn of its outcome, among the columns: no column has such a name."""
_WITH_NULLS = {"ignoreNullFields": "false"}


def pattern_rows(outcomes: DataFrame, pattern: Pattern) -> DataFrame:
    """Outcomes (event_time, LSNS, the pattern's columns) → rows as panes are staged, each of one outcome.

    `window_start` is its event time, `keys` a JSON object of `partition_by`, `measures` one of LSN and the columns:
    texts, where the pattern reads numbers decimals.
    """
    keys = [_text(key, pattern).alias(key) for key in pattern.partition_by]
    values = [_text(column, pattern).alias(column) for column in pattern.columns]
    return outcomes.select(
        F.lit(STAGED_AS + pattern.name).alias("view"),
        F.lit(pattern.version).alias("version"),
        F.col("event_time").alias("window_start"),
        (F.col("account") if "account" in pattern.partition_by else F.lit(None).cast("string")).alias("account"),
        F.to_json(F.struct(*keys), _WITH_NULLS).alias("keys"),
        F.to_json(F.struct(F.coalesce(*LSNS).alias(LSN), *values)).alias("measures"),
    )


def _text(column: str, pattern: Pattern) -> Column:
    found = F.col(column)
    return (found.try_cast(NUMBER) if column in pattern.numbers else found).cast("string")
