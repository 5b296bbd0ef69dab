"""A batch of many records, written in tasks of Spark; the driver decides about them by their summaries.

1. Tasks validate records, and leave them and their summaries (`handover`): this is the query of every batch.
2. The driver decides by the summaries, in the same lines as about whole records: times of receipt, lsns, repeats.
3. `WriteRange` of each range of lsns: the records as the driver has decided, as a file of the journal.

The driver sees no text of an event, but of people's rows who may have been forgotten: its tasks have no key of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from jobs.ingestion.bookkeeping import COLUMNS, PARTS, Sums, sums_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.erasures import Erasures, read_of, with_changes
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.handover import Left
from jobs.ingestion.journal_rows import Commit, with_dispositions, with_documents
from jobs.ingestion.summaries import BATCH, FILE, ROW
from jobs.journal.erasing import concerned
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.new_files import Exchanged, NewFile, cleaned_up, statistics_of
from jobs.runtime.summaries import answers_of_tasks

RANGE_ROWS = 50_000
"""Rows of the journal in one of its files, at most: what a task of the second pass holds."""
FILE_OF_JOURNAL = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("written_ms", pa.int64()),
        ("log_date", pa.string()),
        ("statistics", pa.string()),
    ]
)
DECIDED = ("received_at", "first_received_at", "replays_lsn", "first_lsn", "same")
"""What the driver has decided of a record, beside its lsn and what follows from these."""
Answer = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Range:
    """Rows of the journal that follow each other, and which batches of which files have their records."""

    first_lsn: int
    batches: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Written:
    """How rows are written: what is the same in all of a commit, and how the table has them."""

    commit: Commit
    catalog: pa.Table
    """Changes of the catalog, which are its first rows."""
    stored: pa.Schema
    statistics: frozenset[str]
    range_rows: int = RANGE_ROWS
    """Rows of a file at most."""


@dataclass(frozen=True)
class WriteRange:
    """Step 3, of one range."""

    ANSWERS = ("file", "concerned", *PARTS)

    ranges: Sequence[Range]
    decisions: str
    """A file of what is decided: a batch for each range, in the order of lsn."""
    validated: Sequence[str]
    beside: Exchanged
    config: IngestionConfig
    written: Written
    accounts: Sequence[str] = ()
    """Those of which somebody was forgotten."""
    erased: Mapping[int, pa.Table] = field(default_factory=dict)
    """By range what must be different of its rows, where the driver has looked at them."""

    def __call__(self, number: int) -> Answer:
        """Where the range is, as the journal's log says it, with sums of its rows; or the rows of people who may have
        been forgotten, and no file.
        """
        events = self._events(number)
        rows = events
        if number == 0:
            rows = pl.concat([pl.DataFrame(self.written.catalog), events], how="diagonal_relaxed")
        rows = self.written.commit.with_rules(rows)
        found = concerned(rows.select(read_of(rows.columns)), self.accounts) if self.accounts else rows.clear()
        sums = sums_of(events.select(COLUMNS))
        answer = {
            "file": FILE_OF_JOURNAL.empty_table(),
            "concerned": found.select(read_of(found.columns)).to_arrow(),
            **{name: getattr(sums, name).to_arrow() for name in PARTS},
        }
        if number in self.erased:
            rows = with_changes(rows, pl.DataFrame(self.erased[number]))
        elif len(found):
            return answer
        stored = with_stored_columns(self.written.commit.made(rows), self.written.stored)
        statistics = statistics_of(stored, self.written.statistics)
        file = self.beside.folder.write(stored, self.written.commit.logged_at, statistics)
        values = {name: getattr(file, name) for name in FILE_OF_JOURNAL.names}
        return {**answer, "file": pa.Table.from_pylist([values], FILE_OF_JOURNAL)}

    def _events(self, number: int) -> pl.DataFrame:
        """The records of a range with all that is decided, and with their documents, in the order of lsn."""
        wanted, files = self.ranges[number], self.beside.folder.files
        with files.open_input_file(self.decisions) as stream:
            decided = pl.DataFrame(pa.Table.from_batches([pa.ipc.open_file(stream).get_batch(number)]))
        decided = decided.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("place"))
        rows = dict(iter(decided.group_by(FILE, BATCH)))
        read, places = list[pa.Table](), list[pl.Series]()
        for file in sorted({file for file, _ in wanted.batches}):
            with files.open_input_file(self.validated[file]) as stream:
                reader = pa.ipc.open_file(stream)
                for batch in sorted(batch for of_file, batch in wanted.batches if of_file == file):
                    of_batch = rows[file, batch]
                    # Its own records alone: those of other ranges, which may be many more, are let go with the batch.
                    taken = reader.get_batch(batch).take(of_batch[ROW].to_arrow())
                    read.append(pa.Table.from_batches([taken]))
                    places.append(of_batch["place"])
        records = pl.DataFrame(pa.concat_tables(read))[pl.concat(places).arg_sort()]
        lsn = pl.int_range(pl.len(), dtype=pl.Int64) + wanted.first_lsn
        events = records.drop("first_received_at").with_columns(decided.select(DECIDED)).with_columns(lsn=lsn)
        validated = validated_by_reception(events, self.config)
        return with_documents(with_dispositions(validated))


def written_in_tasks(  # noqa: PLR0917
    spark: SparkSession,
    left: Left,
    decided: pl.DataFrame,
    config: IngestionConfig,
    written: Written,
    erasures: Erasures,
) -> tuple[list[NewFile], Sums]:
    """Files of the journal with the changes of the catalog and these records (FILE, BATCH, ROW, `lsn`, DECIDED; in the
    order of lsn), and what is kept of them. There is at least one record.
    """
    decisions = left.beside.new_path("decided")
    ranges = _ranges(decided, left, decisions, written.range_rows)
    writing = WriteRange(ranges, decisions, left.paths, left.beside, config, written, erasures.accounts)
    with cleaned_up(lambda: left.beside.folder.remove([decisions])):
        answers = answers_of_tasks(spark, len(ranges), WriteRange.ANSWERS, writing)
        waiting = [number for number, answer in enumerate(answers) if not len(answer["file"])]
        if waiting:
            changes = {n: erasures.changes(pl.DataFrame(answers[n]["concerned"])).to_arrow() for n in waiting}
            again = answers_of_tasks(
                spark, len(waiting), WriteRange.ANSWERS, _Some(replace(writing, erased=changes), waiting)
            )
            answers = [*answers]
            for number, answer in zip(waiting, again, strict=True):
                answers[number] = answer
    files = [NewFile(**row) for answer in answers for row in answer["file"].to_pylist()]
    parts = [Sums(*(pl.DataFrame(answer[name]) for name in PARTS)) for answer in answers]
    return files, Sums.added(parts)


@dataclass(frozen=True)
class _Some:
    """Only these of the ranges."""

    writing: WriteRange
    numbers: Sequence[int]

    def __call__(self, number: int) -> Answer:
        return self.writing(self.numbers[number])


def _ranges(decided: pl.DataFrame, left: Left, path: str, range_rows: int) -> list[Range]:
    """Leave what is decided in one file, a batch for each range."""
    count = -(-len(decided) // range_rows)
    borders = [len(decided) * number // count for number in range(count + 1)]
    ranges, data, first_lsn = list[Range](), pa.BufferOutputStream(), decided["lsn"][0]
    sent = decided.select(FILE, BATCH, ROW, *DECIDED).to_arrow()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(data, sent.schema, options=options) as writer:
        for begin, end in pairwise(borders):
            writer.write_batch(sent.slice(begin, end - begin).combine_chunks().to_batches()[0])
            batches = decided.slice(begin, end - begin).select(FILE, BATCH).unique().rows()
            ranges.append(Range(first_lsn + begin, sorted(batches)))
    left.beside.folder.put(path, data.getvalue())
    return ranges
