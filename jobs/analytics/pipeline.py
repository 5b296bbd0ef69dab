"""usage joined with its journal rows → aggregates per minute ("panes") of each view → Postgres `analytics_panes`.

A pane is what the outcomes of one minute and key add up to, as numbers and as sketches that can be merged: any cut of
usage into batches, and any order, makes the same of it. Late outcomes merge into their pane. An outcome that is taken
back has its minute made again from all of usage. None of this is money: bills come from rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.few_outcomes import few_outcomes, for_spark
from jobs.analytics.fold import REBUILT, OfDriver, fold, is_expiry_due
from jobs.analytics.gauges import totals
from jobs.analytics.newest_panes import NewestPanes
from jobs.analytics.outcomes import IS_MEASURED, READ, blocks_of, outcomes
from jobs.analytics.panes import panes
from jobs.analytics.panes_of_rows import can_measure, panes_of_rows
from jobs.analytics.patterns.blocks import blocks_in_tasks, blocks_of_rows
from jobs.analytics.patterns.fold import is_match_due
from jobs.analytics.ranges import Range
from jobs.analytics.retractions import (
    counted,
    frame_of,
    made_again,
    minutes_taken_back,
    netted,
    of_minutes,
    rebuildable,
)
from jobs.analytics.watches.hits import OF_ROWS, hits_in_tasks, hits_of
from jobs.analytics.watches.running import running_watches
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import Fold, Lookup, PostgresJob, Summary
from jobs.streams import INSTANT, Table
from metering.vocabulary import Job

STAGED = pa.schema(
    [
        pa.field("view", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("keys", pa.string(), nullable=False),
        pa.field("measures", pa.string(), nullable=False),
    ]
)
"""One row per pane that Spark makes: what one micro-batch adds to it, or its whole new value if its minute is being
rebuilt: then there is a row of the view REBUILT for it."""
IS_REBUILT = "is_rebuilt"


IS_ROW = "is_row"
"""Where outcomes are taken back: whether it is a row of usage as it came, for watches, and no outcome of a view."""


def enrich(usage: DataFrame, config: AnalyticsConfig, lookup: Lookup) -> DataFrame:
    """Rows of usage → outcomes: event_time and the columns of all views, one row each.

    Where outcomes of earlier batches are taken back, their minutes come whole, and there is a column `is_rebuilt`: true
    in a row of each such minute that is no outcome. Watches read each row of usage with its sign: then those come, too.
    """
    also = OF_ROWS if config.watches else ()
    # Of the batch before.
    usage.sparkSession.catalog.clearCache()
    measured = usage.where(IS_MEASURED)
    blocks, highest, takes_back = blocks_of(measured)
    if not takes_back or not (config.views or config.patterns):
        found = outcomes(measured, columns_of(config), blocks, lookup, also)
        return found.persist() if len(config.views) + len(config.patterns) + config.watches > 1 else found
    found = netted_outcomes(measured, config, lookup, blocks, highest)
    if config.watches:
        rows = outcomes(measured, columns_of(config), blocks, lookup, also).withColumn(IS_ROW, F.lit(True))
        found = found.withColumn(IS_ROW, F.lit(False)).unionByName(rows, allowMissingColumns=True)
    return found.persist()


def columns_of(config: AnalyticsConfig) -> list[str]:
    """What views, patterns and watches read of outcomes."""
    return sorted({*config.columns, *(config.running.of_outcomes if config.watches else ())})


def netted_outcomes(
    measured: DataFrame, config: AnalyticsConfig, lookup: Lookup, blocks: Sequence[Range], highest: int
) -> DataFrame:
    """What views and patterns look at, of rows some of which take outcomes back; the rest is what `blocks_of` says of
    them.
    """
    spark, columns = measured.sparkSession, config.columns
    net = netted(measured).persist()
    gone = minutes_taken_back(net)
    if not gone:
        return outcomes(counted(net), columns, blocks, lookup)
    listed = rebuildable(gone, lookup)
    again = frame_of(spark, listed)
    rows = of_minutes(counted(net), again, how="left_anti")
    rows = rows.unionByName(made_again(again, listed, highest, lookup)).persist()
    found = outcomes(rows, columns, blocks_of(rows.withColumns({"lsn": F.lit(0), "sign": F.lit(1)}))[0], lookup)
    rebuilt = again.select(F.col("minute").alias("event_time"), F.lit(True).alias(IS_REBUILT))
    return found.withColumn(IS_REBUILT, F.lit(False)).unionByName(rebuilt, allowMissingColumns=True)


def build(found: DataFrame, config: AnalyticsConfig) -> DataFrame:
    """Outcomes (`enrich`) → panes, one row per view, minute and key, blocks of outcomes for patterns, and hits of
    watches; columns of `STAGED`.
    """
    staged = []
    if config.watches:
        rows = found.where(IS_ROW) if IS_ROW in found.columns else found
        staged.append(hits_in_tasks(rows, config.running, STAGED))
    if config.views or config.patterns:
        measured = found.where(~F.col(IS_ROW)) if IS_ROW in found.columns else found
        staged.append(build_measured(measured, config))
    return reduce(DataFrame.unionByName, staged)


def build_measured(found: DataFrame, config: AnalyticsConfig, *, of_driver: bool = False) -> DataFrame:
    """Outcomes → panes, one row per view, minute and key, and blocks of outcomes for patterns; columns of `STAGED`.

    `of_driver`: the driver has these outcomes (`panes`).
    """
    of_outcomes = found.where(~F.col(IS_REBUILT)) if IS_REBUILT in found.columns else found
    of_views = [panes(of_outcomes, view, of_driver=of_driver) for view in config.declared_views]
    patterns = config.declared_patterns
    of_patterns = [blocks_in_tasks(of_outcomes, patterns, STAGED)] if patterns else []
    staged = reduce(DataFrame.unionByName, [*of_views, *of_patterns])
    if IS_REBUILT not in found.columns:
        return staged
    rebuilt = found.where(IS_REBUILT).select(
        F.lit(REBUILT).alias("view"),
        F.lit("").alias("version"),
        F.col("event_time").alias("window_start"),
        F.lit("[]").alias("keys"),
        F.lit("{}").alias("measures"),
    )
    return staged.unionByName(rebuilt)


def build_few(spark: SparkSession, usage: pa.Table, config: AnalyticsConfig, lookup: Lookup) -> Summary | None:
    """Rows READ that the driver has → what `build` makes of `enrich`, by Spark only what is to be cast by it.

    Panes and blocks that the driver makes are beside it (`OfDriver`). None where minutes are made again, or the
    journal's files are large.
    """
    found = few_outcomes(usage, columns_of(config), lookup, OF_ROWS if config.watches else ())
    if found is None:
        return None
    staged = hits_of(found, config.running, STAGED) if config.watches else STAGED.empty_table()
    blocks = blocks_of_rows(found, config.declared_patterns) if config.patterns else []
    kinds = for_spark(found.clear()).schema
    views = [view for view in config.declared_views if can_measure(view, kinds)]
    of_driver = OfDriver(chain.from_iterable([panes_of_rows(found, view) for view in views]), blocks or [])
    left = {name: view for name, view in config.views.items() if name not in {view.name for view in views}}
    by_spark = config.model_copy(update={"views": left, "patterns": config.patterns if blocks is None else {}})
    if by_spark.views or by_spark.patterns:
        # In one part: nothing is shuffled, which is a job of Spark for each aggregation.
        frame = spark.createDataFrame(for_spark(found.select("event_time", *by_spark.columns))).coalesce(1)
        staged = pa.concat_tables([staged, build_measured(frame, by_spark, of_driver=True).toArrow().cast(STAGED)])
    return Summary(staged, of_driver)


def current(connection: psycopg.Connection[Any], lookup: Lookup, config: AnalyticsConfig) -> AnalyticsConfig:
    """The configuration with the watches that run now."""
    return config.with_running(running_watches(connection, lookup, config.running)) if config.watches else config


def _is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    """Whether a match may become final, or rows expire, although no outcome came: the latter once an hour."""
    return is_expiry_due(around) or is_match_due(cursor, around)


JOB = PostgresJob(
    name=Job.ANALYTICS.value,
    reads=Table.USAGE,
    columns=lambda config: with_fingerprint(Table.USAGE, (*READ, "request_id") if config.watches else READ),
    config=AnalyticsConfig,
    build=build,
    staged=STAGED,
    fold=fold,
    enrich=enrich,
    build_few=build_few,
    pause_seconds=lambda config, rows: config.batch_interval_seconds(rows),
    concerns=IS_MEASURED,
    is_due=_is_due,
    totals=totals,
    current=current,
    memory=NewestPanes,
)
