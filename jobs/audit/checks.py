"""journal, usage and what Postgres holds → the checks of docs/design.md, section 8, each with how much it examined.

Executors recompute: all rows of a key go to one task, which knows nothing of the others. The driver gets what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.audit.differences import Kind
from jobs.audit.examined import EXAMINED, SUM, USAGE_READ, examined, journal_read
from jobs.audit.kept import Kept, kept
from jobs.audit.minutes import KEY, MINUTES, MINUTES_READ, minute_sums, unequal_minutes
from jobs.audit.pinned import pin
from jobs.audit.recomputed import OUTCOME, Pinned
from jobs.audit.stored import Sessions, Stored
from jobs.joins.past import CLOCK_SKEW
from jobs.runtime.delta.object_store import readable_by_spark
from jobs.runtime.delta.table import open_table
from jobs.runtime.families import FAMILY_SQL
from jobs.sessionization.pipeline import CONCERNS
from jobs.streams import Table
from metering.words import BILLABLE, Disposition

ROWS_PER_BUCKET = 100_000
"""Of the journal: about what a task holds at once."""


@dataclass(frozen=True)
class Check:
    """What one promise came to: how much was looked at, what is not as it must be, and the first of that in words."""

    check: str
    examined: int
    found: int
    says: str

    @property
    def holds(self) -> bool:
        """Whether all that was examined is as it must be."""
        return self.found == 0


def audit(spark: SparkSession, tables: str, made: Stored) -> Iterator[Check]:
    """Examine all that journal and usage hold: a version of each, read after `made`, which was made of them."""
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None:
        yield Check("I4", 0, 0, "there is no usage yet")
        return
    held = {Table.JOURNAL: kept(journal), Table.USAGE: kept(usage)}
    pinned = pin(usage, held.values(), tables, made.present)
    yield _numbers(held)
    yield from _outcomes(spark, tables, journal, usage, pinned)
    if (since := held[Table.JOURNAL].since) is not None:
        yield Check("I5", 0, 0, f"the journal has lost the days before {since}, and sessions stay for ever")
    else:
        yield _sessions(spark, tables, journal, made.sessions)
    yield _windows(spark, tables, usage, made, held[Table.USAGE].since)
    broken = made.corrections.broken
    sound = "each straggler that changed a window is one correction of its quantity"
    yield Check("I8", made.corrections.examined, len(broken), _first(broken) or sound)


def _numbers(held: Mapping[Table, Kept]) -> Check:
    missing = [
        f"{table}: {one.missing} rows are missing between {one.first} and {one.next}"
        for table, one in held.items()
        if one.missing
    ]
    return Check(
        "I1",
        sum(one.rows for one in held.values()),
        sum(abs(one.missing) for one in held.values()),
        _first(missing) or "each lsn of journal and usage is there, but for the days that `weir retain` has removed",
    )


def _outcomes(
    spark: SparkSession, tables: str, journal: DeltaTable, usage: DeltaTable, pinned: Pinned
) -> Iterator[Check]:
    families = ", ".join(f"'{family}'" for family in BILLABLE)
    concerned = (
        f"lsn < {pinned.position} AND disposition = '{Disposition.ACCEPTED}' AND request_id IS NOT NULL "
        f"AND {_as_stored(FAMILY_SQL, journal)} IN ({families})"
    )
    rows = _read(spark, f"{tables}/{Table.JOURNAL}", journal, journal_read(pinned), concerned)
    outcomes = _read(spark, f"{tables}/{Table.USAGE}", usage, USAGE_READ)
    buckets = 1 + (pinned.position // ROWS_PER_BUCKET)

    def examine(journal_rows: pa.Table, usage_rows: pa.Table) -> pa.Table:
        return examined(pl.DataFrame(journal_rows), pl.DataFrame(usage_rows), pinned).to_arrow().cast(_ARROW)

    bucket = F.pmod(F.hash("account", "request_id"), F.lit(buckets))
    found = pl.DataFrame(
        rows.groupBy(bucket).cogroup(outcomes.groupBy(bucket)).applyInArrow(examine, _schema(EXAMINED)).toArrow()
    )
    counted = found.filter(pl.col("kind") == SUM)
    rows_examined, outcomes_examined = (int(counted[name].sum()) for name in ("rows", "outcomes"))
    otherwise = pl.col("kind") == Kind.OTHERWISE
    wrong = found.filter(pl.col("kind") != SUM)
    left_out = "" if pinned.since is None else f"; not what came before {pinned.since}, of which rows were removed"
    for name, number, part, sound in (
        ("I4", rows_examined, wrong.filter(~otherwise), "each request and completion is in one outcome, or waits"),
        ("I10", outcomes_examined, wrong.filter(otherwise), "each outcome says what the journal makes of it"),
    ):
        broken = part.unique(OUTCOME, keep="first", maintain_order=True)
        says = [_difference(row) for row in broken.head(1).iter_rows(named=True)]
        yield Check(name, number, len(broken), (_first(says) or sound) + left_out)


def _sessions(spark: SparkSession, tables: str, journal: DeltaTable, made: Sessions) -> Check:
    requests = _read(
        spark,
        f"{tables}/{Table.JOURNAL}",
        journal,
        ("account", "user_id"),
        f"lsn < {made.position} AND {_as_stored(CONCERNS, journal)}",
    )
    counted = pl.DataFrame(requests.groupBy("account", "user_id").count().toArrow())
    both = counted.join(made.events, on=["account", "user_id"], how="full", coalesce=True).fill_null(0)
    unequal = [
        f"{row['user_id']} of {row['account']} has {row['count']} requests, and {row['events']} in sessions"
        for row in both.filter(pl.col("count") != pl.col("events")).sort("account", "user_id").iter_rows(named=True)
    ]
    broken = [*unequal, *made.overlapping]
    sound = "each request with a user is in one session of theirs, and none overlaps another"
    return Check("I5", int(counted["count"].sum()), len(broken), _first(broken) or sound)


def _windows(spark: SparkSession, tables: str, usage: DeltaTable, made: Stored, since: date | None) -> Check:
    rows = _read(spark, f"{tables}/{Table.USAGE}", usage, MINUTES_READ, f"lsn < {made.billed.position}")

    def reduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from minute_sums(pl.DataFrame(batch)).to_arrow().cast(_arrow(MINUTES)).to_batches()

    summed = (
        rows.mapInArrow(reduce, _schema(MINUTES))
        .groupBy(*KEY)
        .agg(F.max("unit_price").alias("unit_price"), F.sum("quantity").cast("decimal(38,6)").alias("quantity"))
    )
    sums, said = pl.DataFrame(summed.toArrow()), ""
    parts = [sums, made.billed.windows, made.billed.dropped]
    if since is not None:
        # Nothing of a minute is logged before it, but for the clocks.
        whole = datetime.combine(since, time(), UTC) + CLOCK_SKEW
        parts = [part.filter(pl.col("window_start") >= whole) for part in parts]
        said = f"; not before {whole}, of which usage was removed"
    broken = [*unequal_minutes(*parts), *made.days.broken]
    sound = "signed usage is windows and unbilled stragglers, per meter and price, and days add up to the minutes"
    return Check("I6", len(parts[0]), len(broken), (_first(broken) or sound) + said)


def _read(
    spark: SparkSession, path: str, version: DeltaTable, columns: tuple[str, ...], where: str = "true"
) -> DataFrame:
    """Of a version of a table the columns that it has got already."""
    stored = [field.name for field in version.schema().fields]
    found = spark.read.format("delta").option("versionAsOf", version.version()).load(readable_by_spark(path))
    return found.where(where).select(*[name for name in columns if name in stored])


def _as_stored(condition: str, journal: DeltaTable) -> str:
    """The same of a journal of an earlier release, which has no `family`."""
    has_one = any(field.name == "family" for field in journal.schema().fields)
    return condition if has_one else condition.replace(FAMILY_SQL, FAMILY_SQL.replace("coalesce(family,", "coalesce("))


def _difference(row: dict[str, Any]) -> str:
    place = f"request {row['request_id']} of {row['account']} (lsn {row['request_lsn']}, {row['completion_lsn']})"
    match row["kind"]:
        case Kind.LOST | Kind.PHANTOM:
            return f"{place} is {row['kind']}"
        case Kind.COUNTED:
            return f"{place} is there {row['found']} times, last in usage {row['usage_lsn']}"
    return f"{place}: {row['column']} is {row['found']} instead of {row['expected']}, in usage {row['usage_lsn']}"


def _first(broken: list[str]) -> str:
    return broken[0] if broken else ""


def _arrow(schema: pl.Schema) -> pa.Schema:
    """With the texts that Spark wants."""
    fields = pl.DataFrame(schema=schema).to_arrow().schema
    return pa.schema([f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in fields])


def _schema(schema: pl.Schema) -> str:
    """As Spark writes it."""
    names = {pl.String: "string", pl.Int64: "bigint", pl.Datetime: "timestamp"}
    return ", ".join(
        f"`{name}` "
        + (f"decimal({kind.precision},{kind.scale})" if isinstance(kind, pl.Decimal) else names[type(kind)])
        for name, kind in schema.items()
    )


_ARROW = _arrow(EXAMINED)
