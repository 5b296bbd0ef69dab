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

from jobs.ingestion.bookkeeping import PARTS, Sums, sums_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.erasures import Erasures, read_of, with_changes
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.handover import Left, records_at
from jobs.ingestion.journal_rows import Commit, with_dispositions, with_documents
from jobs.ingestion.summaries import BATCH, FILE, ROW
from jobs.journal.erasing import concerned
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.new_files import Exchanged, NewFile, cleaned_up
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
class Decided:
    """What the driver has decided of a batch; the lsns of both have no hole together."""

    records: pl.DataFrame
    """Of records that tasks find in files (FILE, BATCH, ROW, `lsn`, DECIDED; in the order of lsn), at least one."""
    own: pl.DataFrame
    """Rows of the journal that the driver has made of whole records, but for their `rules`; in the order of lsn."""


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

    first_lsns: Sequence[int]
    """Of each range."""
    decisions: str
    """A file of what is decided: a batch for each range, in the order of lsn."""
    own: str | None
    """The same of the driver's own rows; None where it has none."""
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
        sums = sums_of(rows)
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
        file = self.beside.folder.write(stored, self.written.commit.logged_at, self.written.statistics)
        values = {name: getattr(file, name) for name in FILE_OF_JOURNAL.names}
        return {**answer, "file": pa.Table.from_pylist([values], FILE_OF_JOURNAL)}

    def _events(self, number: int) -> pl.DataFrame:
        """The rows of a range but the catalog's, with all that is decided and with their documents, by lsn."""
        decided, own = self._batch(self.decisions, number), None
        if self.own is not None:
            own = self._batch(self.own, number)
            if decided.is_empty():
                return own
        lsn = pl.int_range(len(decided) + (0 if own is None else len(own)), dtype=pl.Int64, eager=True)
        lsn = (lsn + self.first_lsns[number]).alias("lsn")
        if own is not None:
            lsn = lsn.filter(~lsn.is_in(own["lsn"].implode()))
        records = records_at(self.beside.folder.files, self.validated, decided)
        events = records.drop("first_received_at").with_columns(decided.select(DECIDED)).with_columns(lsn)
        events = with_documents(with_dispositions(validated_by_reception(events, self.config)))
        return events if own is None else pl.concat([own, events], how="diagonal_relaxed").sort("lsn")

    def _batch(self, path: str, number: int) -> pl.DataFrame:
        with self.beside.folder.files.open_input_file(path) as stream:
            return pl.DataFrame(pa.Table.from_batches([pa.ipc.open_file(stream).get_batch(number)]))


def written_in_tasks(  # noqa: PLR0917
    spark: SparkSession,
    left: Left,
    decided: Decided,
    config: IngestionConfig,
    written: Written,
    erasures: Erasures,
) -> tuple[list[NewFile], Sums]:
    """Files of the journal with the changes of the catalog and these rows, and what is kept of them."""
    first_lsns = _first_lsns(decided, written.range_rows)
    decisions = left.beside.new_path("decided")
    own = left.beside.new_path("own") if len(decided.own) else None
    writing = WriteRange(first_lsns, decisions, own, left.paths, left.beside, config, written, erasures.accounts)
    with cleaned_up(lambda: left.beside.folder.remove([decisions, *([own] if own else [])])):
        records = decided.records.select("lsn", FILE, BATCH, ROW, *DECIDED)
        left.beside.folder.put(decisions, _in_ranges(records, first_lsns, without="lsn"))
        if own is not None:
            left.beside.folder.put(own, _in_ranges(decided.own, first_lsns))
        answers = answers_of_tasks(spark, len(first_lsns), WriteRange.ANSWERS, writing)
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


def _first_lsns(decided: Decided, range_rows: int) -> list[int]:
    """Where ranges of about as many rows begin."""
    rows = len(decided.records) + len(decided.own)
    first = min(int(part["lsn"][0]) for part in (decided.records, decided.own) if len(part))
    count = -(-rows // range_rows)
    return [first + rows * number // count for number in range(count)]


def _in_ranges(rows: pl.DataFrame, first_lsns: Sequence[int], without: str | None = None) -> pa.Buffer:
    """Rows (lsn; in its order) as a file with a batch for each range."""
    borders = [*rows["lsn"].search_sorted(pl.Series(first_lsns, dtype=pl.Int64)), len(rows)]
    sent = (rows if without is None else rows.drop(without)).to_arrow()
    data, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(data, sent.schema, options=options) as writer:
        for begin, end in pairwise(borders):
            part = sent.slice(begin, end - begin).combine_chunks()
            writer.write_batch(next(iter(part.to_batches()), _no_rows(sent.schema)))
    return data.getvalue()


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
