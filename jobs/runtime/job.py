"""A job as a value: what it reads, its configuration, and the fold of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.config import JobConfig
from jobs.streams import Table
from metering.instants import Clock
from metering.meters import OfMeter
from monitoring.instruments import CounterMetric, GaugeMetric

# Types of annotations only: a job as a value needs neither Kafka nor Postgres.
if TYPE_CHECKING:
    import psycopg

    from jobs.runtime.delta.new_files import Exchanged
    from jobs.runtime.delta.pieces import Pieces
    from jobs.runtime.delta.upstream import Upstream
    from jobs.runtime.effective_rules import EffectiveRules, History, Rules
    from jobs.runtime.environment import Environment
    from jobs.runtime.kafka.denied_topics import Denials
    from jobs.runtime.postgres.ownership import Ownership
    from jobs.runtime.postgres.totals import Totals

C = TypeVar("C", bound=JobConfig)
Batch: TypeAlias = "DataFrame | pa.Table | Pieces"
"""Of a table: a frame of Spark, rows that the driver has read, or files that tasks read."""
Counts = Mapping[tuple[CounterMetric, *tuple[str, ...]], int]
"""What a fold counted: (the metric, the values of its labels in their order...) → increase."""


@dataclass(frozen=True)
class Fold:
    """Around a batch: frontiers, stored with the position before it and to be stored with it, and the next position."""

    previous_frontier: datetime | None
    frontier: datetime | None
    next_position: int
    is_whole: bool = True
    """Whether each commit of the table is folded with all its rows: F may have passed one that is only partly read."""
    rules: Sequence[EffectiveRules] = ()
    """What decides the rows from `next_position` on, as far as it is known; without any, nothing is known to close."""
    beside: Any = None
    """What `build_few` made beside the summaries (`Summary`)."""
    memory: Any = None
    """What `PostgresJob.memory` made, as earlier folds of the same sink have left it."""


@dataclass(frozen=True)
class Summary:
    """What a job makes of a batch: summaries for `staged`, and what its fold gets without their passing through it."""

    staged: pa.Table
    beside: Any = None


@dataclass(frozen=True)
class Lateness:
    """How many events were how late: per bucket of `metrics.LATENESS` and above the last, and the sum in seconds."""

    counts: tuple[int, ...]
    total_seconds: float


@dataclass(frozen=True)
class Progress:
    """What a sink did with one micro-batch."""

    records: int
    counts: Counts
    lateness: Lateness | None = None


@dataclass(frozen=True)
class Context(Generic[C]):
    """All that a starting sink may use."""

    config: C
    environment: Environment
    spark: SparkSession
    ownership: Ownership
    clock: Clock
    denials: Denials
    """Of topics, since the driver's start; kept while sinks and sources come and go."""


class Sink(Protocol):
    """Where a job's results and its position live, committed together."""

    def process(self, batch: Any) -> Progress:
        """Cut the batch to what is new, reduce it, and commit it with the new position.

        `batch` is a frame of Spark, or where the source is a table a `Batch`. Raises Refused when records are missing
        before it, Fenced when another driver owns the job.
        """

    def frontier(self) -> datetime | None:
        """F: all that was received before it is committed."""

    def status(self) -> dict[str, Any]:
        """What `weir status` shows beside the lag, as JSON values."""

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """What it holds now, for Prometheus; gauges without labels."""

    def close(self) -> None:
        """Give back what the sink holds."""


class TopicSink(Sink, Protocol):
    """A sink whose input is a Kafka topic."""

    @property
    def driver_rows(self) -> int | None:
        """Up to how many records of a batch are all the driver's work; None: any number."""

    def record_bytes(self) -> int:
        """Mean size of a record in the topic."""

    def batch_bytes_per_record(self) -> int:
        """Mean size of the rows of a record, to bound batches by the memory of the driver."""

    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """The next offset by topic and partition; a partition without one is new and starts at its beginning."""

    def frontiers(self) -> Mapping[str, datetime | None]:
        """F of each topic; None: one of its partitions was not heard of yet."""

    def advance(self) -> None:
        """Called between batches."""


class TableSink(Sink, Protocol):
    """A sink whose input is a Delta table, in `lsn` order."""

    @property
    def rows_at_once(self) -> int:
        """Most rows that it can hold of one batch."""

    @property
    def driver_rows(self) -> int | None:
        """Up to how many rows of a batch are reduced in the driver, without Spark; 0: none; None: all come to it."""

    @property
    def task_rows(self) -> int:
        """Up to how many rows of a batch come as files, which tasks of Spark read; 0: none."""

    def position(self) -> int:
        """The next lsn to fold; 1 before the first."""

    def verify(self, upstream: Upstream, /) -> None:
        """Check that the position is one of this table, before the first batch; an older version's adopts it.

        Raises Refused when it is not.
        """

    def advance(self) -> None:
        """Called between batches: let time pass where no record came."""


@dataclass(frozen=True)
class InTasks:
    """How summaries are made in tasks of Spark that read the rows themselves (`summaries.summarized`).

    `part` makes them of any part of the rows, `added` adds up those of a task, and `merged` those of all: it gives the
    same for any cut.
    """

    part: Callable[[pa.Table, History], pa.Table]
    added: Callable[[pa.Table], pa.Table]
    merged: Callable[[pa.Table], pa.Table]


TotalsOf = Callable[[str], "tuple[Totals, ...]"]
"""The job's name → what a scrape reads from the database about its results; called once per process."""


class Lookup(Protocol):
    """The tables beside the one that a job reads, for Spark."""

    def rows(self, table: Table, condition: str) -> DataFrame:
        """The rows of `table` as it is now that meet a condition in Spark's SQL."""

    def few_rows(self, table: Table, lsns: pl.Series, columns: Sequence[str]) -> pl.DataFrame | None:
        """`lsn` and those of `columns` that the table has, read without Spark; None where that would be too much."""

    def whole(self, table: Table, columns: Sequence[str]) -> pl.DataFrame | None:
        """All rows of a small table, read without Spark, again only where it has changed; None where there is none."""

    def has_all_since(self, table: Table, day: date) -> bool:
        """Whether no row of this log date or a later one was removed from the journal or usage (`weir retain`)."""


def only_the_later(_last: Rules, present: Rules) -> Rules:
    """`PostgresJob.following` for rules where earlier ones have no further effect."""
    return present


def never(_cursor: psycopg.Cursor[Any], _around: Fold) -> bool:
    """`PostgresJob.is_due` where only rows change what is stored."""
    return False


def at_once(_config: Any, _rows: int) -> float:
    """`PostgresJob.pause_seconds` where each commit is followed at once."""
    return 0.0


def no_memory() -> None:
    """For a job that reads from the database all that it merges with."""


def no_totals(_job: str) -> tuple[Totals, ...]:
    """For a job without results in a database."""
    return ()


@dataclass(frozen=True)
class TopicJob(Generic[C]):
    """A job that reads the Kafka topic `events` and writes a Delta table.

    `build` is Spark's part of a batch: here it validates each record by itself. It is part of the query, so that Spark
    analyses it once and not with every batch; the sink gets its result. It may leave the result in the place that it
    is given, from which the sink takes it: a folder of this machine, or where there are executors that of the table.
    `validator` returns the function that does the same to a few records (`RECORDS`) in the driver.

    `settle` fills the settings that a configuration leaves to the table, as it is before the first batch, and refuses
    what must not be stored as the job's configuration. `start` makes the sink of this job.
    """

    name: str
    writes: Table
    config: type[C]
    build: Callable[[DataFrame, C, Path | Exchanged | None], DataFrame]
    validator: Callable[[C], Callable[[pa.Table], pa.Table]]
    settle: Callable[[C, Environment], C]
    start: Callable[[TopicJob[C], Context[C]], TopicSink]
    totals: TotalsOf = no_totals

    @property
    def tables(self) -> tuple[Table, ...]:
        """All that it writes."""
        return (self.writes,)


@dataclass(frozen=True)
class TableJob(Generic[C]):
    """A job that reads a Delta table and writes another, and `also_writes` beside it.

    Only `columns` of the table are read; a configuration may name some. `build` is what Spark makes of a batch (pure,
    built-in operators): here it keeps every row with its lsn, and leaves out what the driver does not need. `new_rows`
    calls it.

    `settle` is as that of a `TopicJob`. `start` makes the sink of this job.
    """

    name: str
    reads: Table
    writes: Table
    columns: Callable[[C], tuple[str, ...]]
    config: type[C]
    build: Callable[[DataFrame, C], DataFrame]
    settle: Callable[[C, Environment], C]
    start: Callable[[TableJob[C], Context[C]], TableSink]
    also_writes: tuple[Table, ...] = ()
    totals: TotalsOf = no_totals

    @property
    def tables(self) -> tuple[Table, ...]:
        """All that it writes."""
        return (self.writes, *self.also_writes)


@dataclass(frozen=True)
class PostgresJob(Generic[C]):
    """A job that folds a Delta table into Postgres.

    Only `columns` of the table are read; a configuration may name some. `build` is what Spark makes of a batch: it
    reduces its rows to summaries, on executors where there are any. The sink has it called by `new_rows`. A job has
    that, or `build_here`, which makes them in the driver, without Spark, under the rules that decide the rows;
    `build_in_tasks` makes the same of more than `driver_rows` rows where there are executors. Summaries are copied into
    the temporary table `staged`, whose columns are those of the Arrow schema `staged`; `fold` merges them in the
    transaction that moves the position.

    `enrich` is called before `build` in a job whose rows name rows of other tables: it returns what `build` gets.
    `build_few` makes the same summaries of rows that the driver has read, up to `LOOKED_UP_ROWS`, by Spark only where
    that costs less; or it gives None where it is for `enrich` and `build`.

    `memory` makes what folds of a sink remember from one to the next. It is as of the last commit: a transaction that
    fails leaves a new one.

    `concerns` is a condition, in the SQL of both Spark and Polars: of rows for none of which it holds `build` makes
    nothing, so Spark is not needed.

    `following`: the effective rules if rules follow others. `closes_after`: how long after its end a result is closed
    under some rules; the rules of a batch have with them what was shown closed under earlier ones, up to and with
    which end. Without it nothing counts as closed.

    `is_due`: whether the passing of time alone changes what is stored: then `fold` is called without any row.

    `pause_seconds`: how long after a batch of all rows that there were, so many, the driver waits before it reads the
    next one. Where it reads whole batches itself it waits no longer than until there is half of one.

    `beside` is entered before the first batch and left after the last: what else runs in the driver meanwhile.

    `history` is the table that says what decided, from which `first_position` on.

    `current` is called before each batch of a job that also does what rows of the database say: the configuration with
    those, or the one that it got.
    """

    name: str
    reads: Table
    columns: Callable[[C], tuple[str, ...]]
    config: type[C]
    staged: pa.Schema
    fold: Callable[[psycopg.Cursor[Any], C, Fold], Counts]
    build: Callable[[DataFrame, C], DataFrame] | None = None
    build_here: Callable[[pa.Table, History], pa.Table] | None = None
    build_in_tasks: InTasks | None = None
    enrich: Callable[[DataFrame, C, Lookup], DataFrame] | None = None
    build_few: Callable[[SparkSession, pa.Table, C, Lookup], Summary | None] | None = None
    concerns: str = "true"
    following: Callable[[Rules, Rules], Rules] = only_the_later
    closes_after: Callable[[Rules], OfMeter[timedelta]] | None = None
    is_due: Callable[[psycopg.Cursor[Any], Fold], bool] = never
    totals: TotalsOf = no_totals
    pause_seconds: Callable[[C, int], float] = at_once
    beside: Callable[[Context[C]], AbstractContextManager[None]] | None = None
    history: str = "rules"
    current: Callable[[psycopg.Connection[Any], Lookup, C], C] | None = None
    memory: Callable[[], Any] = no_memory

    @property
    def tables(self) -> tuple[Table, ...]:
        """No Delta table is its own."""
        return ()


AnyJob = TopicJob[Any] | TableJob[Any] | PostgresJob[Any]
