"""A batch of many rows, decided and priced in tasks of Spark; the driver numbers what they have decided.

1. `ReadPart` of each file: requests and completions, by part of their keys; changes of the catalog go to the driver.
2. `DecidePart` of each part, with what waits of it (`decide_rows`): outcomes by deciding lsn, and what waits now.
3. The driver knows from the deciding lsns which rows of usage there are, and in which order: it cuts them into ranges.
4. `WriteRange` of each range: priced (`priced`), numbered (`usage_rows`), and written as a file of usage.

Between the steps rows are in files (`exchange`): the driver sees lsns and counts, and Java nothing but numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog import versions_in_use
from jobs.joins.config import JoinsConfig
from jobs.joins.decide import decide_rows
from jobs.joins.decisions import with_decisions
from jobs.joins.exchange import Exchange, part_of, plain_arrow
from jobs.joins.memory import Schema
from jobs.joins.recovery import as_carried, is_paired
from jobs.joins.spread_memory import Part, Place, written_part
from jobs.joins.timeouts import Timeouts
from jobs.joins.usage_rows import priced, usage_rows
from jobs.joins.versions_in_use import VersionsInUse
from jobs.journal.families import family
from jobs.runtime.batch import runs_in
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.new_files import NewFile
from jobs.runtime.delta.pieces import BATCH_ROWS, LSN, Pieces
from jobs.runtime.effective_rules import History
from jobs.streams import Table
from metering.vocabulary import Disposition

VALUE = "value"
CATALOG = "catalog."
CHANGES = ("lsn", "topic", "disposition", "received_at", VALUE)
CHANGES_PER_BATCH = 1_000
DECIDED = "decided_lsn"
Answer = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Sizes:
    """How a large batch is cut.

    `part_rows`: rows of the journal in a part, about. `range_rows`: rows of usage in a range, at most.
    `step_rows`: outcomes of a part in one batch of its file; so finely a range is read from it.
    """

    part_rows: int = 100_000
    range_rows: int = 100_000
    step_rows: int = 8_192


@dataclass(frozen=True)
class ReadPart:
    """Step 1, of one file of the journal."""

    ANSWERS = ("runs", "last", "frontiers", "changes", "file")

    batch: Pieces
    exchange: Exchange
    schema: Schema
    history: History
    parts: int
    of_last_row: tuple[str, ...]

    def __call__(self, number: int) -> Answer:
        """Which lsns the file has, its last row, its frontiers, its changes of the catalog, and where its rows are."""
        names = [name for name in self.schema if name not in ("remembered", "decided_side")]
        empty = pl.DataFrame(schema={name: self.schema[name] for name in names})
        runs, last, frontiers, has_changes = list[pa.Table](), list[pa.Table](), list[pa.Table](), False
        waiting = Timeouts(self.history).of_row()
        events = _only(self.batch, [name for name in self.batch.schema.names if name != VALUE])
        with self.exchange.writing("read", plain_arrow(empty).schema) as file:
            for read in events.of_task(number, BATCH_ROWS):
                if not len(read):
                    continue
                rows = pl.DataFrame(read)
                runs.append(runs_in(read[LSN]).to_arrow())
                frontiers.append(last_of_frontiers(rows))
                last.append(
                    read.select([LSN, *self.of_last_row]).slice(pc.index(read[LSN], pc.max(read[LSN])).as_py(), 1)
                )
                has_changes |= bool(rows["topic"].str.starts_with(CATALOG).any())
                paired = as_carried(rows.filter(is_paired()).with_columns(family()), self.schema)
                new = pl.concat([empty, paired.with_columns(waiting).select(names)])
                place = part_of(new, self.parts)
                for part in range(self.parts):
                    file.add(new.filter(place == part))
        changes = [*_changes(self.batch, number)] if has_changes else []
        no_runs = pa.schema([pa.field("first", pa.int64()), pa.field("rows", pa.int64())])
        return {
            "runs": _joined(no_runs, runs),
            "last": _joined(_only(self.batch, [LSN, *self.of_last_row]).schema, last),
            "frontiers": _joined(_only(self.batch, [LSN, "frontier"]).schema, frontiers),
            "changes": _joined(_only(self.batch, CHANGES).schema, changes),
            "file": pa.table({"path": [file.path], "batches": [len(runs) * self.parts]}),
        }


@dataclass(frozen=True)
class DecidePart:
    """Step 2, of one part of the keys."""

    ANSWERS = ("decided", "counts", "file", "memory")

    files: Sequence[tuple[str, int]]
    exchange: Exchange
    memory: tuple[Part, ...]
    frontier: datetime | None
    limit_bytes: int
    step_rows: int

    def __call__(self, number: int) -> Answer:
        """The deciding lsns, how many there are of each outcome, where the outcomes are, and what waits now."""
        parts, before = len(self.memory), self.memory[number].read(self.exchange)
        read = [self.exchange.read(path, range(number, batches, parts)) for path, batches in self.files if batches]
        nothing = before.rows.drop("remembered", "decided_side").clear()
        outcomes, after = decide_rows(before, pl.concat([nothing, *read]), self.frontier, self.limit_bytes // parts)
        ordered = outcomes.with_columns(decided_lsn()).sort(DECIDED)
        with self.exchange.writing("outcomes", plain_arrow(ordered.clear()).schema) as file:
            for first in range(0, len(ordered), self.step_rows):
                file.add(ordered.slice(first, self.step_rows))
        return {
            "decided": plain_arrow(ordered.select(DECIDED)),
            "counts": plain_arrow(outcomes.group_by("outcome").len()),
            "file": pa.table({"path": [file.path]}),
            # All of it is written again, so what is over is left out each time.
            "memory": _as_table(written_part(after.without_over(self.frontier), self.exchange)),
        }


@dataclass(frozen=True)
class Range:
    """Rows of usage that follow each other, by the lsns that decided them, and where they are."""

    first: int
    last: int
    first_lsn: int
    batches: Sequence[tuple[str, int, int]]
    """Of which file from which batch on, to before which."""


@dataclass(frozen=True)
class Catalogued:
    """The versions of accounts and prices as of the batch: those that the driver has stored."""

    tables: str
    options: tuple[tuple[str, str], ...]
    versions: tuple[tuple[Table, int], ...]
    dimensions: tuple[str, ...]

    def read(self) -> tuple[VersionsInUse, VersionsInUse, BillingDays]:
        """Once in each worker."""
        return _versions_of(self)


@dataclass(frozen=True)
class WriteRange:
    """Step 4, of one range."""

    ANSWERS = ("file",)

    ranges: Sequence[Range]
    exchange: Exchange
    config: JoinsConfig
    catalog: Catalogued
    decisions: pa.Table
    """They follow the last range."""
    logged_at: datetime
    rules: str | None
    frontier: datetime | None
    stored: pa.Schema
    statistics: frozenset[str]

    def __call__(self, number: int) -> Answer:
        """Where the range is, as usage's log says it."""
        wanted = self.ranges[number]
        read = [self.exchange.read(path, range(first, end)) for path, first, end in wanted.batches]
        within = pl.concat(read).filter(pl.col(DECIDED).is_between(wanted.first, wanted.last)).sort(DECIDED)
        costs = priced(within.drop(DECIDED), self.config, *self.catalog.read())
        if number == len(self.ranges) - 1:
            costs = with_decisions(costs, self.decisions)
        rules = self.rules if number == 0 else None
        rows = usage_rows(costs, wanted.first_lsn, self.logged_at, rules, self.frontier)
        stored = with_stored_columns(rows, self.stored)
        file = self.exchange.folder.write(stored, self.logged_at, self.statistics)
        names = ("path", "size", "written_ms", "log_date", "statistics")
        return {"file": pa.table({name: [getattr(file, name)] for name in names})}


def ranges_of(decided: Sequence[tuple[str, pl.Series]], first_lsn: int, sizes: Sizes) -> list[Range]:
    """Where each part's outcomes are and which lsns decided them, in order → at least one range, of at most
    `range_rows` rows of usage, from `first_lsn` on. Raises ValueError where two outcomes were decided by one lsn.
    """
    every = pl.concat([lsns for _, lsns in decided]).sort()
    if every.n_unique() != len(every):
        raise ValueError("two outcomes were decided by one row of the journal")
    count = max(1, -(-len(every) // sizes.range_rows))
    borders = [len(every) * number // count for number in range(count + 1)]
    found = []
    for begin, end in pairwise(borders):
        first, last = (int(every[begin]), int(every[end - 1])) if len(every) else (0, 0)
        batches = [(path, *_between(lsns, first, last, sizes.step_rows)) for path, lsns in decided]
        found.append(Range(first, last, first_lsn + begin, batches))
    return found


def _between(lsns: pl.Series, first: int, last: int, step_rows: int) -> tuple[int, int]:
    begin, end = int(lsns.search_sorted(first, "left")), int(lsns.search_sorted(last, "right"))
    return begin // step_rows, -(-end // step_rows) if end > begin else begin // step_rows


def last_of_frontiers(rows: pl.DataFrame) -> pa.Table:
    """Each F among rows of the journal, with the highest lsn that has it: so much `batch_frontier` needs."""
    return rows.group_by("frontier").agg(pl.max("lsn")).select("lsn", "frontier").to_arrow()


def decided_lsn() -> pl.Expr:
    """Of outcomes: the row of the journal with which each was decided; no two have the same."""
    return pl.max_horizontal("request_lsn", "completion_lsn").alias(DECIDED)


def parts_for(rows: int, cores: int, part_rows: int) -> int:
    """Into how many parts keys are cut: a power of two, so that it seldom changes."""
    least = max(cores, -(-rows // part_rows))
    return 1 << (least - 1).bit_length()


def parts_in(answers: Sequence[Answer]) -> tuple[Part, ...]:
    """What each part remembers, as the tasks of step 2 answered."""
    return tuple(_as_part(answer["memory"]) for answer in answers)


def files_in(answers: Sequence[Answer]) -> list[NewFile]:
    """The files of step 4."""
    return [NewFile(**row) for answer in answers for row in answer["file"].to_pylist()]


def _as_table(part: Part) -> pa.Table:
    """A row: two places, and four numbers."""
    return pa.Table.from_pylist([asdict(part)])


def _as_part(table: pa.Table) -> Part:
    (row,) = table.to_pylist()
    return Part(Place(**row.pop("rows")), Place(**row.pop("decided")), **row)


def _changes(batch: Pieces, number: int) -> Iterator[pa.Table]:
    """A file's accepted changes of the catalog. Only they have their `value` read: events have theirs in columns."""
    for rows in _only(batch, CHANGES).of_task(number, CHANGES_PER_BATCH):
        accepted = pc.equal(rows["disposition"], Disposition.ACCEPTED.value)
        yield rows.filter(pc.and_kleene(pc.starts_with(rows["topic"], CATALOG), accepted))


def _joined(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    wanted = pa.schema([field.with_nullable(True) for field in schema])
    return pa.concat_tables([wanted.empty_table(), *[table.cast(wanted) for table in tables]])


def _only(batch: Pieces, names: Sequence[str]) -> Pieces:
    return replace(batch, schema=pa.schema([batch.schema.field(name) for name in dict.fromkeys(names)]))


@lru_cache(maxsize=1)
def _versions_of(catalog: Catalogued) -> tuple[VersionsInUse, VersionsInUse, BillingDays]:
    held = {
        table: DeltaTable(f"{catalog.tables}/{table}", version=version, storage_options=dict(catalog.options))
        for table, version in catalog.versions
    }
    versions = versions_in_use({table: found.to_pyarrow_table() for table, found in held.items()}, catalog.dimensions)
    accounts = versions[Table.ACCOUNTS]
    return accounts, versions[Table.PRICES], BillingDays(accounts.every)
