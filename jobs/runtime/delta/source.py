"""Where micro-batches come from: a Delta table in lsn order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.config import JobConfig
from jobs.runtime.delta.driver_rows import VALUE, DriverRows, TableLimits
from jobs.runtime.delta.object_store import readable_by_spark, storage_options
from jobs.runtime.delta.pieces import Pieces, pieces_of_files, pieces_of_lsns
from jobs.runtime.delta.upstream import Upstream, no_table
from jobs.runtime.environment import Environment
from jobs.runtime.errors import Refused
from jobs.runtime.idle_trigger import IdleTrigger
from jobs.runtime.job import Batch, PostgresJob, TableJob, TableSink

log = structlog.get_logger()

READ_ONE_VERSION_SECONDS = 600.0
"""How long a backlog is read from one version of its table: much less than the table's log is kept."""
SELDOM_FILES = 10_000
"""An idle query passes over what the driver has taken, in one batch."""
LOOK_SECONDS = 0.25
"""How often the driver looks while the query is idle: as often as Spark does else."""
MAX_COMMIT_ROWS = 10_000_000
"""Of a single commit that tasks read: nobody can cut it, and no task holds all of it."""
MAX_TASK_BYTES = 8 << 30
COMMITS_OF_A_BATCH = 100
"""That the driver reads together where it reads whole batches: more than a minute has, and no pause is longer."""
WHOLE_ROWS = 400_000
"""Of a commit that the driver reads: two full batches of ingestion."""
MAX_BYTES_PER_TRIGGER = 32 << 20
MAX_FILES_PER_TRIGGER = 20


class TableSource(IdleTrigger):
    """A Delta table: first the rows that exist, in chunks by lsn, then its commits as they come.

    While the driver can read all new rows itself the query is idle: Spark polls rarely, because a look at a table costs
    it a job, and the driver takes the rows. As soon as there are more, the query is rebuilt and polls as usual.
    """

    few = TableLimits()
    whole_file_bytes = 64 << 20

    def __init__(
        self, job: TableJob[Any] | PostgresJob[Any], config: JobConfig, environment: Environment, sink: TableSink
    ) -> None:
        self._job = job
        self._table = f"{environment.tables}/{job.reads}"
        self._path = readable_by_spark(self._table)
        self._chunk, self._share = sink.rows_at_once, sink.rows_at_once / config.max_records_per_batch
        self._sink = sink
        self._upstream = Upstream(environment.tables, job.reads)
        self._version = 0
        self._taken: int | None = None
        self._offered: tuple[int, int] | None = None
        self._columns: tuple[str, ...] = ()
        self._driver_rows, self._task_rows = sink.driver_rows, sink.task_rows
        self._read = job.columns(config)
        self._by_driver = DriverRows(self._table, self._read, self._most())
        self._pause_seconds: Callable[[int], float] = (
            partial(job.pause_seconds, config) if isinstance(job, PostgresJob) else lambda _rows: 0.0
        )
        self._paused_until = 0.0
        self._has_warned = False
        self._is_verified = False

    def exists(self) -> bool:
        """Whether the job before this one has made the table, and given it the columns of this version."""
        self._upstream.refresh()
        if self._upstream.version is None and self._sink.position() > 1:
            raise no_table(self._job.name, self._job.reads, self._sink.position(), self._path)
        lacking = sorted(set(self._read) - set(self._upstream.columns))
        if lacking and self._upstream.version is not None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "waits for columns that its table gets when this version of the application that writes it starts",
                job=self._job.name,
                table=self._path,
                columns=lacking,
            )
        return not lacking

    def backlog(self, spark: SparkSession) -> Iterator[Batch]:
        """What the table holds beyond the sink's position, cut into bounded ranges of lsn.

        The log of the version that is read expires while a long backlog lasts, so the table is reopened now and then.
        The backlog ends only with a version that was read in one range, so that the stream begins where the log still
        reaches.
        """
        self._upstream.refresh()
        if not self._is_verified:
            # Once: from then on the sink moves its position itself, and a log that is replaced is refused as such.
            self._sink.verify(self._upstream)
            self._is_verified = self._upstream.version is not None
        is_recent = False
        while not is_recent:
            is_recent = self._upstream.next_lsn - self._sink.position() <= (self._task_rows or self._chunk)
            yield from self._chunks(spark)
            self._note()
            self._upstream.refresh()

    def _chunks(self, spark: SparkSession) -> Iterator[Batch]:
        # The reporter looks at the table meanwhile and may see it grow: this look decides what is taken.
        self._offered = self._upstream.reached or (0, 1)
        (self._version, end), opened = self._offered, time.monotonic()
        self._columns = self._upstream.columns
        if self._sink.position() >= end:
            return
        rows_of = self._in_tasks(spark) or self._by_spark(spark)
        while (first := self._sink.position()) < end and time.monotonic() < opened + READ_ONE_VERSION_SECONDS:
            before = min(first + (self._task_rows or self._chunk), end)
            yield rows_of(first, before)
            if self._sink.position() == first:
                raise Refused(
                    f"{self._job.name} is at lsn {first}, but {self._path} has no row from there to {before - 1}, "
                    "though its log lists them: rows were deleted before they were read; restore the "
                    f"{self._job.reads} that has them"
                )

    def _by_spark(self, spark: SparkSession) -> Callable[[int, int], Batch]:
        """How rows of this version are read by Spark."""
        table = spark.read.format("delta").option("versionAsOf", self._version).load(self._path).select(*self._read)
        return lambda first, before: table.where(f"lsn >= {first} AND lsn < {before}")

    def _in_tasks(self, spark: SparkSession) -> Callable[[int, int], Batch] | None:
        """How rows of this version are read by tasks, or a few by the driver; None where Spark reads them.

        What records said Spark reads, which leaves away that of events (`build`).
        """
        if not self._task_rows:
            return None
        by_spark = self._by_spark(spark) if VALUE in self._read else None
        table = DeltaTable(self._table, version=self._version, storage_options=storage_options(self._table))

        def rows_of(first: int, before: int) -> Batch:
            found = pieces_of_lsns(table, self._read, first, before)
            if before - first > (self._driver_rows or 0):
                return found
            return found.read() if by_spark is None else by_spark(first, before)

        return rows_of

    def stream(self, spark: SparkSession) -> DataFrame:
        """Commits from the version that the backlog ended with; the sink cuts what it knows."""
        self._is_idle = self._may_idle()
        return (
            spark.readStream.format("delta")
            .option("startingVersion", self._version)
            .option("skipChangeCommits", "true")
            .option("maxFilesPerTrigger", SELDOM_FILES if self._is_idle else MAX_FILES_PER_TRIGGER)
            .option("maxBytesPerTrigger", f"{int(MAX_BYTES_PER_TRIGGER * self._share)}b")
            .load(self._path)
            .select(*self._read)
        )

    def has_news(self) -> bool:
        """Whether the table goes on after the sink's position."""
        self._look()
        return self._is_behind()

    def _look(self) -> None:
        """Look at the table, and remember the last version that the sink has wholly taken."""
        self._note()
        self._upstream.refresh()
        self._note()

    def _note(self) -> None:
        position = self._sink.position()
        for known in (self._offered, self._upstream.reached):
            if known is not None and position >= known[1]:
                self._taken = max(known[0], self._taken or 0)

    def instead_of(self, batch: DataFrame) -> Batch:
        """What the table got since the sink's position, where the driver can read it; a batch of the same for Spark.

        It holds no less than a batch of Spark's that came before the last look.
        """
        rows = None
        if (new := self._new_versions()) is not None:
            files = self._many_files(new)
            if files is not None and self._offered is not None and self._offered[0] == new[-1]:
                return files
            rows = self._by_driver.added(new)
            # Once more, because what was read is believed only of the table that was looked at before.
            self._look()
        if rows is None:
            self._leave_to_spark()
        return batch if rows is None else rows

    def found(self) -> pa.Table | Pieces | None:
        """What the table got first while the query is idle: as much as the driver reads at once, or tasks do.

        Where a single commit is more, the query is rebuilt. After all rows that there were the next batch has a pause.
        """
        began = time.monotonic()
        if (
            not self._is_idle
            or (began < self._paused_until and not self._waits_half_a_batch())
            or not (self._is_behind() or self._upstream.goes_on())
            or not self.has_news()
        ):
            return None
        found = None
        if (new := self._new_versions()) is not None:
            if (files := self._many_files(new)) is not None:
                return files
            found = self._by_driver.first(new)
            self._look()
        if found is None:
            self._leave_to_spark()
        else:
            self._offered = found.version, 0 if found.rows is None else 1 + pc.max(found.rows["lsn"]).as_py()
            if new is not None and found.version == new[-1]:
                self._paused_until = began + self._pause_seconds(0 if found.rows is None else len(found.rows))
        return None if found is None else found.rows

    def _many_files(self, new: range) -> Pieces | None:
        """The files of the first of these commits where they have more rows than the driver reduces itself."""
        if not self._task_rows:
            return None
        most = TableLimits(rows=self._task_rows, rows_of_one=MAX_COMMIT_ROWS, file_bytes=MAX_TASK_BYTES)
        listed = self._by_driver.listed(new, most)
        self._look()
        if listed is None or listed.rows <= (self._driver_rows or 0) or (next_lsn := listed.next_lsn) is None:
            return None
        if (table := self._upstream.table) is None:
            return None
        self._offered = listed.version, next_lsn
        files = [(file.path, file.rows) for file in listed.files]
        return pieces_of_files(table, self._read, files, self._sink.position())

    def _new_versions(self) -> range | None:
        """The commits after those that the sink has wholly taken; None where it is not known which these are."""
        reached = self._upstream.reached
        return None if self._taken is None or reached is None else range(self._taken + 1, reached[0] + 1)

    def _waits_half_a_batch(self) -> bool:
        """Whether half of what the driver reads at once was there at the last look, of which reports make one."""
        half = (self._driver_rows or 0) // 2
        return 0 < half <= self._upstream.next_lsn - self._sink.position()

    def _is_behind(self) -> bool:
        return self._upstream.next_lsn > self._sink.position()

    def _most(self) -> TableLimits:
        """What the driver reads at once: as much as it reduces itself, few rows where it reduces none.

        What joins reads would come to it anyway. A full commit of ingestion is more than joins takes at once, which
        cuts it (`in_parts`). Spark would bring it to the driver whole, too.
        """
        if self._driver_rows is None:
            return replace(self.few, rows=3 * self._chunk, rows_of_one=WHOLE_ROWS, file_bytes=self.whole_file_bytes)
        if self._driver_rows == 0:
            return self.few
        most = {"commits": COMMITS_OF_A_BATCH, "rows": self._driver_rows, "file_bytes": self.whole_file_bytes}
        return replace(self.few, **most)

    @property
    def trigger(self) -> str:
        """At once, or seldom while the query is idle."""
        return f"{self.seldom_seconds:g} seconds" if self._is_idle else "0 seconds"

    @property
    def look_seconds(self) -> float:
        """The driver looks more often than Spark while the query is idle."""
        return LOOK_SECONDS if self._is_idle else 1.0

    def must_restart(self) -> bool:
        """Whether the query must become idle, or active again; batches are bounded by files."""
        return self._may_idle() != self._is_idle

    def close(self) -> None:
        """Nothing is held."""

    def stopped(self) -> None:
        """Nothing: rows of a table are ours, and none is given up."""

    def failed(self, error: Exception) -> None:
        """The same."""

    def can_go_on(self) -> bool:
        """True when the table got columns, or its log no longer reaches back to where the query began.

        Spark ends a stream at a commit that adds columns, before it reads what follows it; and one that is further
        behind than the log reaches. Both start over with the rows that the table holds beyond the sink's position.
        """
        self._upstream.refresh()
        return self._upstream.columns != self._columns or not self._upstream.reaches(self._version)

    def advance(self) -> None:
        """Let the sink see that time passes."""
        self._sink.advance()

    def lag(self) -> tuple[int, datetime | None]:
        """The table's next lsn against the sink's position."""
        self._upstream.refresh()
        return max(0, self._upstream.next_lsn - self._sink.position()), self._upstream.frontier

    def lag_by_topic(self) -> list[dict[str, Any]]:
        """Nothing: a table is not read by topic."""
        return []

    def retention(self) -> dict[str, Any]:
        """Nothing: of a table nothing is deleted that is not read."""
        return {}
