"""usage, with what the journal has of it → panes of a minute for each declared view → Postgres `analytics_panes`.

A pane is what the outcomes of one minute and key add up to, as numbers and as sketches that can be merged: any cut of
usage into batches, and any order, makes the same of it. Late outcomes merge into their pane. An outcome that is taken
back has its minute made again from all of usage. None of this is money: bills come from rows alone.
"""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.few_outcomes import few_outcomes
from jobs.analytics.fold import REBUILT, fold
from jobs.analytics.gauges import totals
from jobs.analytics.outcomes import IS_MEASURED, READ, blocks_of, outcomes
from jobs.analytics.panes import panes
from jobs.analytics.patterns.fold import is_due
from jobs.analytics.patterns.rows import pattern_rows
from jobs.analytics.retractions import (
    counted,
    frame_of,
    made_again,
    minutes_taken_back,
    netted,
    of_minutes,
    rebuildable,
)
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import Lookup, PostgresJob
from jobs.streams import INSTANT, Table
from metering.vocabulary import Job

STAGED = pa.schema(
    [
        pa.field("view", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("account", pa.string()),
        pa.field("keys", pa.string(), nullable=False),
        pa.field("measures", pa.string(), nullable=False),
    ]
)
"""One row per pane: what one micro-batch adds to it, or all of it where there is a row of the view REBUILT for its
minute."""
IS_REBUILT = "is_rebuilt"


def enrich(usage: DataFrame, config: AnalyticsConfig, lookup: Lookup) -> DataFrame:
    """Rows of usage → outcomes: event_time and the columns of all views, one row each.

    Where outcomes of earlier batches are taken back, their minutes come whole, and there is a column `is_rebuilt`: true
    in a row of each such minute that is no outcome.
    """
    spark = usage.sparkSession
    # Of the batch before.
    spark.catalog.clearCache()
    columns = config.columns
    measured = usage.where(IS_MEASURED)
    blocks, highest, takes_back = blocks_of(measured)
    if not takes_back:
        found = outcomes(measured, columns, blocks, lookup)
        return found.persist() if len(config.views) + len(config.patterns) > 1 else found
    net = netted(measured).persist()
    gone = minutes_taken_back(net)
    if not gone:
        return outcomes(counted(net), columns, blocks, lookup).persist()
    listed = rebuildable(gone, lookup)
    again = frame_of(spark, listed)
    rows = of_minutes(counted(net), again, how="left_anti")
    rows = rows.unionByName(made_again(again, listed, highest, lookup)).persist()
    found = outcomes(rows, columns, blocks_of(rows.withColumns({"lsn": F.lit(0), "sign": F.lit(1)}))[0], lookup)
    rebuilt = again.select(F.col("minute").alias("event_time"), F.lit(True).alias(IS_REBUILT))
    return found.withColumn(IS_REBUILT, F.lit(False)).unionByName(rebuilt, allowMissingColumns=True).persist()


def enrich_few(usage: pa.Table, config: AnalyticsConfig, lookup: Lookup) -> pa.Table | None:
    """The same of a few rows without Spark; None where minutes are made again, or the journal's files are large."""
    return few_outcomes(usage, config.columns, lookup)


def build(found: DataFrame, config: AnalyticsConfig) -> DataFrame:
    """Outcomes (`enrich`) → panes, one row per view, minute and key, and rows of patterns; columns of `STAGED`."""
    of_outcomes = found.where(~F.col(IS_REBUILT)) if IS_REBUILT in found.columns else found
    of_views = [panes(of_outcomes, view) for view in config.declared_views]
    of_patterns = [pattern_rows(of_outcomes, pattern) for pattern in config.declared_patterns]
    staged = reduce(DataFrame.unionByName, [*of_views, *of_patterns])
    if IS_REBUILT not in found.columns:
        return staged
    rebuilt = found.where(IS_REBUILT).select(
        F.lit(REBUILT).alias("view"),
        F.lit("").alias("version"),
        F.col("event_time").alias("window_start"),
        F.lit(None).cast("string").alias("account"),
        F.lit("[]").alias("keys"),
        F.lit("{}").alias("measures"),
    )
    return staged.unionByName(rebuilt)


JOB = PostgresJob(
    name=Job.ANALYTICS.value,
    reads=Table.USAGE,
    columns=lambda _: with_fingerprint(Table.USAGE, READ),
    config=AnalyticsConfig,
    build=build,
    staged=STAGED,
    fold=fold,
    enrich=enrich,
    enrich_few=enrich_few,
    pause_seconds=lambda config: config.min_batch_interval_seconds,
    concerns=IS_MEASURED,
    is_due=is_due,
    totals=totals,
)
