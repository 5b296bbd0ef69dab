"""Outcomes that are taken back: sketches cannot subtract, so the panes of their minutes are made again from usage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.analytics.outcomes import IDENTITY, IS_MEASURED
from jobs.analytics.ranges import within_minutes
from jobs.runtime.job import Lookup
from jobs.streams import INSTANT, Table

log = structlog.get_logger()
READ_AGAIN = (Table.USAGE, Table.JOURNAL)
BEFORE = timedelta(days=2)
"""A row may be written a day before that of its event, as clocks may be ahead; its request a time-out before that."""


def minute_of(instant: str) -> Column:
    """The start of its minute."""
    return F.date_trunc("minute", F.col(instant))


def netted(usage: DataFrame) -> DataFrame:
    """Rows of usage → `IDENTITY` and `net`: how often each outcome counts after all of them; without those at 0."""
    return usage.groupBy(*IDENTITY).agg(F.sum("sign").alias("net")).where("net <> 0")


def counted(net: DataFrame) -> DataFrame:
    """Outcomes with a positive `net` → one row for each time that they count."""
    positive = net.where("net > 0")
    return positive.withColumn("net", F.explode(F.array_repeat(F.lit(1), F.col("net").cast("int")))).drop("net")


def minutes_taken_back(net: DataFrame) -> list[datetime]:
    """The minutes in which outcomes of earlier batches are taken back, in order."""
    found = net.where("net < 0").select(F.unix_seconds(minute_of("event_time"))).distinct().collect()
    return sorted(datetime.fromtimestamp(row[0], UTC) for row in found)


def rebuildable(minutes: Sequence[datetime], lookup: Lookup) -> list[datetime]:
    """The minutes of which usage and the journal still have all rows. Panes of the others stay, with a warning."""
    days = {minute.date() for minute in minutes}
    whole = {day for day in days if all(lookup.has_all_since(table, day - BEFORE) for table in READ_AGAIN)}
    found = [minute for minute in minutes if minute.date() in whole]
    if len(found) < len(minutes):
        log.warning(
            "panes stay as they are: rows of their days were removed, so they cannot be made again",
            minutes=len(minutes) - len(found),
            first=min(set(minutes) - set(found)).isoformat(),
        )
    return found


def made_again(minutes: DataFrame, listed: Sequence[datetime], highest_lsn: int, lookup: Lookup) -> DataFrame:
    """What counts in these minutes by all of usage up to an lsn: rows with IDENTITY."""
    near = f"lsn <= {highest_lsn} AND {IS_MEASURED} AND ({within_minutes('event_time', listed)})"
    return counted(netted(of_minutes(lookup.rows(Table.USAGE, near), minutes, how="left_semi")))


def of_minutes(rows: DataFrame, minutes: DataFrame, how: str) -> DataFrame:
    """Those that are (`left_semi`), or are not (`left_anti`), of one of these minutes (`minute`)."""
    return rows.join(F.broadcast(minutes), on=minute_of("event_time") == F.col("minute"), how=how)


def frame_of(spark: SparkSession, minutes: Sequence[datetime]) -> DataFrame:
    """A frame with the one column `minute`."""
    return spark.createDataFrame(pa.table({"minute": pa.array(minutes, INSTANT)}))
