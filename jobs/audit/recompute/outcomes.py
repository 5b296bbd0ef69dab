"""All outcomes recomputed and compared with usage: executors take keys, the driver gets the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from jobs.audit.recompute.corrections import CORRECTIONS
from jobs.audit.recompute.examination import (
    EXAMINATION,
    STANDING,
    SUM,
    USAGE_READ,
    as_table,
    contents,
    journal_read,
)
from jobs.audit.recompute.examination import (
    examine as examined,
)
from jobs.audit.recompute.expected import Pinned
from jobs.audit.recompute.late_contracts import (
    EVENT,
    READ_OF_VALIDATED,
    VALIDATED_FROM,
    LaterContracts,
    later_contracts,
    mark_late_contract,
    sent_again,
)
from jobs.audit.recompute.once_per import BLOCKED, CANDIDATES, MARKED, marked, of_any_content, of_content
from jobs.audit.recompute.reversals import is_examined
from jobs.audit.tables.spill import SHIPPED, as_batches, by_part, shipped
from jobs.audit.tables.versions import Versions, arrow, spark_schema
from jobs.joins.memory import KEY
from jobs.runtime.delta.pieces import ROWS_PER_TASK, made_in_tasks, pieces
from metering.vocabulary import UsageCause

ROWS_PER_BUCKET = 100_000
"""Of the journal: about what a task holds at once."""
_ARROW = arrow(EXAMINATION)
_JOURNAL, _USAGE, _UNCOUNTED = "journal", "usage", "uncounted"
_CANDIDATES, _BLOCKED = "candidates", "blocked"
_EVENTS = "events"
_OF_CONTENTS = {_UNCOUNTED: MARKED, _CANDIDATES: CANDIDATES, _BLOCKED: BLOCKED}


def _bucket(buckets: int) -> pl.Expr:
    """All rows of a key are in one, of the journal and of usage."""
    return (pl.struct(KEY).hash(0) % buckets).cast(pl.Int64)


@dataclass(frozen=True)
class Outcomes:
    """How many rows of the journal and outcomes were examined, and what of them differs."""

    rows: int
    outcomes: int
    wrong: pl.DataFrame
    """DIFFERENCES of the stream's rows."""
    faults: pl.DataFrame
    """DIFFERENCES of effective usage, without a known cause."""
    corrections: pa.Table
    """CORRECTIONS of differences with a known cause; only the first of them, where there are more `changes`."""
    changes: int

    @property
    def is_all(self) -> bool:
        """Whether the corrections put everything right that can be."""
        return len(self.corrections) == self.changes

    @property
    def causes(self) -> Counter[str]:
        """How many of the corrections have which cause."""
        counted = self.corrections["cause"].value_counts().to_pylist()
        return Counter({row["values"]: row["counts"] for row in counted})


def outcomes(
    versions: Versions, pinned: Pinned, rows_per_bucket: int = ROWS_PER_BUCKET, without: pl.DataFrame | None = None
) -> Outcomes:
    """Recompute what was made of the journal below the pinned position; nothing of the keys `without` is corrected."""
    journal = pieces(versions.journal, (*journal_read(pinned), "disposition"), versions.since, pinned.position)
    usage = pieces(versions.usage, USAGE_READ, versions.since)
    buckets = 1 + journal.rows // rows_per_bucket
    later = later_contracts(versions.journal, pinned)
    again = _sent_again(versions, later, pinned, buckets)
    nothing = {
        _JOURNAL: pl.DataFrame(journal.schema.empty_table()),
        _USAGE: pl.DataFrame(usage.schema.empty_table()),
        **{name: pl.DataFrame(schema=kinds) for name, kinds in _OF_CONTENTS.items()},
    }
    # All that is corrected at once passes through the driver, so each bucket has its share: keys spread evenly.
    share = replace(pinned, max_rows=max(1, pinned.max_rows // buckets))

    def ship(part: str, rows: pl.DataFrame) -> list[pa.RecordBatch]:
        return as_batches(shipped({part: (rows, _bucket(buckets))}))

    def of_journal(rows: pa.Table) -> list[pa.RecordBatch]:
        read = _with_family(rows)
        return ship(
            _JOURNAL, mark_late_contract(read.filter((pl.col("lsn") < pinned.position) & is_examined()), late=False)
        )

    def of_unknown(rows: pa.Table) -> list[pa.RecordBatch]:
        read = pl.DataFrame(rows).filter(pl.col("lsn") < pinned.position)
        return ship(_JOURNAL, mark_late_contract(later.takes(read, journal.schema.names), again, late=True))

    def of_usage(rows: pa.Table) -> list[pa.RecordBatch]:
        return ship(_USAGE, pl.DataFrame(rows))

    def examine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in _by_bucket(batches, nothing):
            found = examined(parts[_JOURNAL], parts[_USAGE], share, without=without, uncounted=parts[_UNCOUNTED])
            yield from found.to_arrow().cast(_ARROW).to_batches()

    spark, kind = versions.spark, spark_schema(SHIPPED)
    made = made_in_tasks(spark, journal, of_journal, kind, ROWS_PER_TASK).union(
        made_in_tasks(spark, usage, of_usage, kind, ROWS_PER_TASK)
    )
    if later:
        read = (*journal.schema.names, *VALIDATED_FROM)
        unknown = pieces(versions.journal, read, versions.since, later.before, wanted=later.wanted)
        made = made.union(made_in_tasks(spark, unknown, of_unknown, kind))
    if pinned.contents and pinned.decides_contents:
        made = made.union(_uncounted(_grouped(made, buckets), nothing, share, buckets))
    found = pl.DataFrame(_grouped(made, buckets).mapInArrow(examine, spark_schema(EXAMINATION)).toArrow())
    counted = found.filter(pl.col("kind") == SUM)
    differences = found.filter(pl.col("kind") != SUM)
    is_of_now = pl.col("of").eq_missing(STANDING)
    corrections = pa.concat_tables([CORRECTIONS.empty_table(), *map(as_table, counted["corrections"])])
    faults, changes = differences.filter(is_of_now), int(counted["changes"].sum())
    if versions.since is not None:
        unresolved = _not_of_a_period(versions, later, corrections, faults)
        remaining = pl.DataFrame(corrections).join(unresolved, on=KEY, how="anti", maintain_order="left")
        if len(remaining) < len(corrections) < changes:
            # Rows behind them have not been read, and would wait for ever.
            known = unresolved if without is None else pl.concat([without, unresolved])
            return outcomes(versions, pinned, rows_per_bucket, known)
        changes -= len(corrections) - len(remaining)
        corrections, faults = remaining.to_arrow().cast(CORRECTIONS), faults.join(unresolved, on=KEY, how="anti")
    return Outcomes(
        rows=int(counted["rows"].sum()),
        outcomes=int(counted["outcomes"].sum()),
        wrong=differences.filter(~is_of_now),
        faults=faults,
        corrections=corrections,
        changes=changes,
    )


def _by_bucket(
    batches: Iterator[pa.RecordBatch], nothing: Mapping[str, pl.DataFrame]
) -> Iterator[dict[str, pl.DataFrame]]:
    """SHIPPED → the rows of each part of each bucket; `nothing`: those of a part that it has not."""
    for _, parts in by_part(row for batch in batches for row in pl.DataFrame(batch).iter_rows()):
        yield {**nothing, **parts}


def _uncounted(rows: DataFrame, nothing: Mapping[str, pl.DataFrame], pinned: Pinned, buckets: int) -> DataFrame:
    """SHIPPED rows of journal and usage by key → SHIPPED `once_per.MARKED` by key.

    Outcomes of one content are of many keys, so what they bill meets by content between.
    """

    def of_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in _by_bucket(batches, nothing):
            found, blocked = contents(parts[_JOURNAL], parts[_USAGE], pinned)
            bucket, of_any = of_content(buckets), blocked.filter(of_any_content())
            yield from as_batches(shipped({_CANDIDATES: (found, bucket), _BLOCKED: (blocked, bucket)}))
            for target in range(buckets) if len(of_any) else ():
                yield from as_batches(shipped({_BLOCKED: (of_any, pl.col("window") * 0 + target)}))

    def of_contents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in _by_bucket(batches, nothing):
            found = marked(parts[_CANDIDATES], parts[_BLOCKED], pinned)
            yield from as_batches(shipped({_UNCOUNTED: (found, _bucket(buckets))}))

    kind = spark_schema(SHIPPED)
    return _grouped(rows.mapInArrow(of_keys, kind), buckets).mapInArrow(of_contents, kind)


def _sent_again(versions: Versions, later: LaterContracts, pinned: Pinned, buckets: int) -> pl.Series:
    """`late_contracts.sent_again` of the journal below the pinned position.

    An event meets itself by its identity, because its requests are in several buckets.
    """
    nothing = pl.Series(dtype=pl.Int64)
    if not later.types_of_other_requests:
        return nothing
    bucket = (pl.col("identity").hash(0) % buckets).cast(pl.Int64)

    def ship(events: pl.DataFrame, *, late: bool) -> list[pa.RecordBatch]:
        known = mark_late_contract(events.filter(pl.col("identity").is_not_null()), late=late)
        return as_batches(shipped({_EVENTS: (known, bucket)}))

    def of_journal(rows: pa.Table) -> list[pa.RecordBatch]:
        return ship(later.validated(_with_family(rows).filter(pl.col("lsn") < pinned.position)), late=False)

    def of_unknown(rows: pa.Table) -> list[pa.RecordBatch]:
        return ship(later.taken(pl.DataFrame(rows).filter(pl.col("lsn") < pinned.position)), late=True)

    def meet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in _by_bucket(batches, {}):
            yield from pl.DataFrame({"lsn": sent_again(parts[_EVENTS])}).to_arrow().to_batches()

    spark, kind = versions.spark, spark_schema(SHIPPED)
    validated = pieces(versions.journal, READ_OF_VALIDATED, versions.since, pinned.position)
    read = (*EVENT, *VALIDATED_FROM, "family", "disposition")
    unknown = pieces(versions.journal, read, versions.since, later.before, wanted=later.wanted)
    events = made_in_tasks(spark, validated, of_journal, kind).union(made_in_tasks(spark, unknown, of_unknown, kind))
    return pl.concat([nothing, pl.DataFrame(_grouped(events, buckets).mapInArrow(meet, "lsn long").toArrow())["lsn"]])


def _grouped(made: DataFrame, buckets: int) -> DataFrame:
    """SHIPPED with all rows of a bucket together."""
    return made.repartition(buckets, "bucket").sortWithinPartitions("bucket")


def _not_of_a_period(
    versions: Versions, later: LaterContracts, corrections: pa.Table, faults: pl.DataFrame
) -> pl.DataFrame:
    """The keys (KEY) of which the days before the period hold rows, too: what belongs together, all of it says.

    Rows that a contract takes which came later are such: what they say only that contract tells. A later price needs
    nobody else: what is repriced alone stays.
    """
    rows = pl.DataFrame(corrections.select([*KEY, "cause"]))
    concerned = rows.filter(pl.col("cause") != UsageCause.REPRICED.value)
    keys = pl.concat([concerned.select(KEY), faults.select(KEY)]).unique()
    if keys.is_empty():
        return keys
    columns = ("lsn", *KEY, "family", "received_at")

    def of_keys(rows: pl.DataFrame) -> list[pa.RecordBatch]:
        found = rows.select(KEY).join(keys, on=KEY, how="semi").unique()
        return list(found.to_arrow().cast(arrow(keys.schema)).to_batches())

    def of_journal(rows: pa.Table) -> list[pa.RecordBatch]:
        return of_keys(_with_family(rows).filter(is_examined()))

    def of_unknown(rows: pa.Table) -> list[pa.RecordBatch]:
        return of_keys(later.takes(_with_family(rows), columns))

    spark, kind = versions.spark, spark_schema(keys.schema)
    before = pieces(versions.journal, (*KEY, "type", "family", "disposition"), until=versions.since)
    found = made_in_tasks(spark, before, of_journal, kind)
    if later:
        read = (*columns, *VALIDATED_FROM, "disposition")
        unknown = pieces(versions.journal, read, None, later.before, until=versions.since, wanted=later.wanted)
        found = found.union(made_in_tasks(spark, unknown, of_unknown, kind))
    return pl.DataFrame(found.toArrow()).unique()


def _with_family(rows: pa.Table) -> pl.DataFrame:
    """The journal's rows; an older release's table has no such column."""
    read = pl.DataFrame(rows)
    return read if "family" in read.columns else read.with_columns(pl.lit(None, pl.String).alias("family"))
