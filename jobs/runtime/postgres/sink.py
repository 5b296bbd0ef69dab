"""Folds summaries of a Delta table into Postgres: data, position, proof and rules in one transaction."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import structlog
from pyarrow import csv
from pyspark.sql import DataFrame

from jobs.runtime.batch import LsnRange, contiguous
from jobs.runtime.batch_limits import LOOKED_UP_ROWS, outcomes_at_once
from jobs.runtime.delta.lookup import DeltaLookup
from jobs.runtime.delta.pieces import Pieces
from jobs.runtime.delta.position import FINGERPRINT, Position, position_after
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.effective_rules import EffectiveRules, History
from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.job import Batch, Context, Counts, Fold, PostgresJob, Progress, Summary
from jobs.runtime.new_rows import driver_new_rows, new_rows
from jobs.runtime.postgres.meters_table import ever_declared
from jobs.runtime.postgres.rules_backup import RulesBackup, read_backup, restore, stored_rules, write_backup
from jobs.runtime.postgres.rules_table import RulesTable
from jobs.runtime.spark import driver_rows
from jobs.runtime.summaries import summarized
from monitoring.instruments import GaugeMetric

log = structlog.get_logger()

CSV = csv.WriteOptions(include_header=False, quoting_style="needed")
COLUMN_TYPES: dict[pa.DataType, str] = {
    pa.string(): "text",
    pa.int64(): "bigint",
    pa.int32(): "integer",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}


def column_type(arrow: pa.DataType) -> str:
    """The Postgres type that holds an Arrow type exactly. Raises KeyError for a type without one (floats)."""
    return f"numeric({arrow.precision}, {arrow.scale})" if pa.types.is_decimal(arrow) else COLUMN_TYPES[arrow]


def stage(cursor: psycopg.Cursor[Any], columns: pa.Schema, summary: pa.Table, name: str = "staged") -> None:
    """Copy `summary` into a temporary table (`staged`) with these columns, for the rest of the transaction."""
    typed = ", ".join(f'"{field.name}" {column_type(field.type)}' for field in columns)
    cursor.execute(f"CREATE TEMP TABLE {name} ({typed}) ON COMMIT DROP")
    # Else long texts are compressed on their way through it, which took longer than all the rest of it.
    texts = [f'ALTER "{field.name}" SET STORAGE EXTERNAL' for field in columns if field.type == pa.string()]
    if texts:
        cursor.execute(f"ALTER TABLE {name} {', '.join(texts)}")
    # What is null in all rows is not sent, and nothing of no rows: Postgres reads nulls one by one, too.
    if not len(summary):
        return
    names = [field.name for field in columns if summary[field.name].null_count < len(summary)]
    buffer = io.BytesIO()
    csv.write_csv(summary.select(columns.names).cast(columns).select(names).combine_chunks(), buffer, CSV)
    listed = ", ".join(f'"{column}"' for column in names)
    with cursor.copy(f"COPY {name} ({listed}) FROM STDIN (FORMAT csv)") as copy:
        copy.write(buffer.getbuffer())


def place_position(cursor: psycopg.Cursor[Any], job: PostgresJob[Any], to: Position, frontier: datetime | None) -> None:
    """Store how far `job` has folded its table, and all before which reception that is."""
    cursor.execute(
        """INSERT INTO positions (job, input, next_position, input_table, row_before, frontier)
           VALUES (%s, %s, %s, %s, %s, %s)
           ON CONFLICT (job, input) DO UPDATE SET next_position = excluded.next_position,
               input_table = excluded.input_table, row_before = excluded.row_before,
               frontier = excluded.frontier, updated_at = clock_timestamp()""",
        [job.name, job.reads, to.next_lsn, to.table, to.row, frontier],
    )


def _concerns(rows: pa.Table, condition: str) -> bool:
    """Whether the condition holds for any of these rows; only the columns that it names are looked at."""
    wanted = pl.sql_expr(condition)
    named = [*dict.fromkeys(wanted.meta.root_names())]
    return not pl.DataFrame(rows.select(named or rows.column_names)).filter(wanted).is_empty()


class PostgresSink:
    """The sink of a `PostgresJob`."""

    def __init__(self, job: PostgresJob[Any], context: Context[Any]) -> None:
        self._job = job
        self._config = context.config
        self._spark = context.spark
        self._ownership = context.ownership
        self.rows_at_once = context.config.rows_at_once
        self.driver_rows: int | None = 0
        self.task_rows = 0
        if job.build_few is not None:
            self.driver_rows = driver_rows(None, context.spark, LOOKED_UP_ROWS) or LOOKED_UP_ROWS
        if job.build_here is not None:
            # The driver gets all meters of a row, including those that are no longer declared.
            meters = max(len(context.config.meters), ever_declared(context.ownership.connection))
            self.driver_rows = self._driver_rows(context, outcomes_at_once(meters))
            if self.driver_rows is not None and job.build_in_tasks is not None:
                self.task_rows = self.rows_at_once
            self.rows_at_once = min(self.rows_at_once, outcomes_at_once(meters))
        self._at, self._frontier = self._stored()
        self._upstream = Upstream(context.environment.tables, job.reads)
        self._uncounted: Counts = {}
        self._memory = job.memory()
        self._tables = context.environment.tables
        self._lookup = DeltaLookup(context.spark, self._tables)
        self._remembered: list[dict[str, Any]] = []
        self._has_decided: set[str] = set()
        self._refuse_another_past()
        decided_before = self._decided_before()
        self._rules = RulesTable(context.ownership.connection, job, context.config.deciding, decided_before)
        self._remember()

    @staticmethod
    def _driver_rows(context: Context[Any], fitting: int) -> int | None:
        """Up to how many rows of a batch are reduced here; None: all."""
        return driver_rows(context.config.driver_rows, context.spark, fitting)

    def _stored(self) -> tuple[Position, datetime | None]:
        row = self._ownership.connection.execute(
            "SELECT next_position, input_table, row_before, frontier FROM positions WHERE job = %s AND input = %s",
            [self._job.name, self._job.reads],
        ).fetchone()
        return (Position(*row[:3]), row[3]) if row else (Position(), None)

    def _refuse_another_past(self) -> None:
        """Raises Refused where a database without a past would decide again, by other rules, what another one has."""
        if self._at.next_lsn > 1 or stored_rules(self._ownership.connection, self._job):
            return
        known = read_backup(self._tables, self._job.name)
        if known is not None and known.history:
            raise Refused(
                f"{self._job.name} has nothing in this database, but {self._tables} has the rules by which it decided "
                f"{self._job.reads}: the database is new, or was emptied; restore it, or make the tables again by "
                f"those rules with `weir rebuild {self._job.name}`"
            )

    def _decided_before(self) -> int:
        """The position before which all was decided already, by rules that are stored then; 1: as far as is known.

        A database that was restored from a backup lacks the rules that decided since: they are known beside the tables.
        (A gap of sessions decides no money: the present one holds for what is folded again.)
        """
        stored, known = stored_rules(self._ownership.connection, self._job), read_backup(self._tables, self._job.name)
        if self._job.build_here is None or known is None:
            return 1
        newest = max((row["first_position"] for row in stored), default=0)
        least = max(newest + 1, self._at.next_lsn)
        lacking = [row for row in known.history if row["first_position"] >= least]
        if lacking:
            newest = lacking[-1]["first_position"]
            with self._ownership.transaction() as cursor:
                self._assert_position(cursor)
                restore(cursor, self._job, [*stored, *lacking])
        if not lacking and newest <= self._at.next_lsn:
            return 1
        self._upstream.refresh()
        log.warning(
            "the database was restored: what had been decided since is decided again by the rules that held then",
            job=self._job.name,
            first=self._at.next_lsn,
            until=self._upstream.next_lsn,
        )
        return self._upstream.next_lsn

    def _remember(self, once: str = "") -> None:
        """Keep what decided beside the tables, too; with a name only after the first batch of this kind."""
        if once in self._has_decided:
            return
        self._has_decided |= {once} if once else set()
        history = stored_rules(self._ownership.connection, self._job)
        if history != self._remembered:
            config = self._config.model_dump(mode="json")
            write_backup(self._tables, self._job.name, RulesBackup(self._ownership.epoch, config, history))
            self._remembered = history

    def position(self) -> int:
        """The next lsn to fold."""
        return self._at.next_lsn

    def verify(self, upstream: Upstream) -> None:
        """Check that the position is in this table; a position of an older version adopts the table, once."""
        verified = upstream.verified(self._job.name, self._at)
        upstream.refuse_removed(self._job.name, verified.next_lsn)
        if verified != self._at and verified.next_lsn > 1:
            with self._ownership.transaction() as cursor:
                self._assert_position(cursor)
                self._move(cursor, verified, self._frontier)
        self._at = verified

    def process(self, batch: Batch) -> Progress:
        """Reduce the new rows of a batch and fold them. A batch that is known already changes nothing."""
        started = time.monotonic()
        if self._job.current is not None:
            self._config = self._job.current(self._ownership.connection, self._lookup, self._config)
        held = self._rules.in_force(self._at.next_lsn, self._frontier)
        summary, rows = self._summary(batch)
        if rows.records == 0:
            return Progress(0, {})
        frontier, is_whole = self._frontier_at(rows.next), self._ends_commit(rows.next)
        after = position_after(self._job.reads, self._at, rows.next, rows.last)
        memory = self._lent_memory()
        with self._ownership.transaction() as cursor:
            self._assert_position(cursor)
            stage(cursor, self._job.staged, summary.staged)
            rules = self._rules.following(held, self._at.next_lsn, after.next_lsn)
            around = Fold(self._frontier, frontier, after.next_lsn, is_whole, rules, summary.beside, memory)
            counts = self._job.fold(cursor, self._config, around)
            self._rules.keep(cursor, held)
            self._move(cursor, after, frontier)
            self._record(cursor, rows, time.monotonic() - started)
        self._at, self._frontier, self._memory = after, frontier, memory
        self._rules.written(held)
        self._remember("batch")
        totals = Counter(counts)
        totals.update(self._uncounted)
        self._uncounted = {}
        return Progress(rows.records, totals)

    def _summary(self, batch: Batch) -> tuple[Summary, LsnRange]:
        """What the job makes of the new rows, each under the rules that decide it, and their range.

        Of files in tasks, of all other rows here if the job can; else by Spark's operators.
        """
        position, job, fingerprint = self._at.next_lsn, self._job.name, FINGERPRINT[self._job.reads]
        if isinstance(batch, Pieces):
            return self._in_tasks(batch, position)
        if self._job.build is not None:
            return self._by_spark(self._job.build, batch, position)
        assert self._job.build_here is not None
        if isinstance(batch, pa.Table):
            found, rows = driver_new_rows(batch, position, job, fingerprint)
        else:
            found, rows = new_rows(batch, position, job, lambda new: new, fingerprint, keeps_rows=True)
        return Summary(self._job.build_here(found, self._history(position))), rows

    def _in_tasks(self, batch: Pieces, position: int) -> tuple[Summary, LsnRange]:
        assert self._job.build_in_tasks is not None
        job, how = self._job.name, self._job.build_in_tasks
        history, part, fingerprint = self._history(position), how.part, FINGERPRINT[self._job.reads]
        found = summarized(self._spark, batch.since(position), lambda rows: part(rows, history), how.added, fingerprint)
        rows = contiguous(position, found.seen, job)
        return Summary(how.merged(found.rows)), LsnRange(rows.first, rows.next, found.last)

    def _by_spark(
        self, build: Callable[[DataFrame, Any], DataFrame], batch: DataFrame | pa.Table, position: int
    ) -> tuple[Summary, LsnRange]:
        job, fingerprint, enrich = self._job.name, FINGERPRINT[self._job.reads], self._job.enrich

        def built(new: DataFrame) -> DataFrame:
            return build(new if enrich is None else enrich(new, self._config, self._lookup), self._config)

        if not isinstance(batch, pa.Table):
            summary, rows = new_rows(batch, position, job, built, fingerprint)
            return Summary(summary), rows
        found, rows = driver_new_rows(batch, position, job, fingerprint)
        if not _concerns(found, self._job.concerns):
            return Summary(self._job.staged.empty_table()), rows
        few = self._job.build_few
        made = None if few is None else few(self._spark, found, self._config, self._lookup)
        return Summary(built(self._spark.createDataFrame(found)).toArrow()) if made is None else made, rows

    def _history(self, first: int) -> History:
        """The rules of a batch that begins at `first`: several where the past is decided again."""
        starts = (first, *self._rules.borders(first))
        return tuple(replace(self._rules.in_force(start, self._frontier), first=start) for start in starts)

    def advance(self) -> None:
        """Store the input's frontier once all rows before it are folded, also when no new row comes."""
        frontier = self._frontier_at(self._at.next_lsn)
        if frontier != self._frontier:
            held = self._rules.in_force(self._at.next_lsn, self._frontier)
            memory = self._lent_memory()
            with self._ownership.transaction() as cursor:
                self._assert_position(cursor)
                counts = self._fold_time(cursor, frontier, held, memory)
                self._rules.keep(cursor, held)
                self._move(cursor, self._at, frontier)
            self._frontier, self._memory = frontier, memory
            self._rules.written(held)
            self._remember("time")
            # It is reported with the next batch.
            uncounted = Counter(self._uncounted)
            uncounted.update(counts)
            self._uncounted = uncounted
        if self._at.next_lsn >= self._upstream.next_lsn and self._upstream.goes_on():
            self._upstream.refresh()

    def _lent_memory(self) -> Any:
        """What folds remember, for a transaction: until it is committed it may say what is not stored."""
        lent, self._memory = self._memory, self._job.memory()
        return lent

    def _fold_time(
        self, cursor: psycopg.Cursor[Any], frontier: datetime | None, held: EffectiveRules, memory: Any
    ) -> Counts:
        first = self._at.next_lsn
        rules = self._rules.following(held, first, first)
        around = Fold(self._frontier, frontier, first, rules=rules, memory=memory)
        if not self._job.is_due(cursor, around):
            return {}
        stage(cursor, self._job.staged, self._job.staged.empty_table())
        return self._job.fold(cursor, self._config, around)

    def _frontier_at(self, position: int) -> datetime | None:
        seen = self._upstream.frontier
        return seen if seen is not None and self._ends_table(position) else self._frontier

    def _ends_table(self, position: int) -> bool:
        """Whether there was no row of the table from this position on when it was looked at last."""
        return position >= self._upstream.next_lsn

    def _ends_commit(self, position: int) -> bool:
        """Whether this position is known to be where a commit of the table ends: a batch may be ahead of the last look.

        F is taken before that: where the table grows with each batch, it would never move.
        """
        if position > self._upstream.next_lsn:
            self._upstream.refresh()
        return position == self._upstream.next_lsn

    def _assert_position(self, cursor: psycopg.Cursor[Any]) -> None:
        cursor.execute(
            "SELECT next_position FROM positions WHERE job = %s AND input = %s FOR UPDATE",
            [self._job.name, self._job.reads],
        )
        row = cursor.fetchone()
        if (found := row[0] if row else 1) != self._at.next_lsn:
            raise Fenced(f"{self._job.name} is at {found} in the database, this driver left it at {self._at.next_lsn}")

    def _move(self, cursor: psycopg.Cursor[Any], to: Position, frontier: datetime | None) -> None:
        place_position(cursor, self._job, to, frontier)

    def _record(self, cursor: psycopg.Cursor[Any], rows: LsnRange, seconds: float) -> None:
        cursor.execute(
            "INSERT INTO batches (job, first_position, next_position, epoch, records, duration_ms)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [self._job.name, rows.first, rows.next, self._ownership.epoch, rows.records, round(seconds * 1000)],
        )

    def frontier(self) -> datetime | None:
        """All that was received before it is folded."""
        return self._frontier

    def status(self) -> dict[str, Any]:
        """Nothing beside the lag."""
        return {}

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """None: the database has the totals."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""
