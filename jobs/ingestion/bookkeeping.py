"""Statistics of the journal, kept in Postgres: sources, their sequence numbers, unknown types, and dead letters.

They follow the journal: each commit is added once, in the transaction that moves the position in `bookkeeping`. A
commit that a crash left out is added at the next start. Nothing here decides what is billed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import polars as pl
import structlog

from jobs.ingestion.conditions import Conditions, added_rejected, fold_silences, fold_spikes, rejected_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.limits import LIMITS, Limits
from jobs.ingestion.receptions import is_of_the_past
from jobs.ingestion.sequences import MAX_NUMBERS, RUNS, instant_of_minute, minute_of, runs_of
from jobs.ingestion.sources import (
    added_sources,
    events_of_sources,
    fold_sequences,
    fold_sources,
    restart_sequences,
    seen_sources,
    within_limits,
)
from jobs.ingestion.unknown_types import added_types, fold_types, of_unknown_type, types_of
from jobs.journal.elements import is_event
from jobs.runtime.delta.table import DeltaWriter
from jobs.runtime.job import Counts
from jobs.runtime.postgres.ownership import Ownership
from monitoring import metrics

log = structlog.get_logger()

CLOCK_SKEW = timedelta(days=1)
"""A row's log date is the driver's, its received_at the broker's: their clocks may differ."""
COLUMNS = (
    *("lsn", "disposition", "reason", "source", "source_epoch", "type", "family", "account", "received_at"),
    *("first_received_at", "replays_lsn", "event_time", "sequence"),
)

_POSITION = "SELECT next_lsn, frontier FROM bookkeeping WHERE job = %s AND journal = %s"
_MOVE = """
INSERT INTO bookkeeping (job, journal, next_lsn, frontier) VALUES (%s, %s, %s, %s)
ON CONFLICT (job) DO UPDATE SET
    journal = excluded.journal, next_lsn = excluded.next_lsn, frontier = excluded.frontier, updated_at = now()
"""


@dataclass(frozen=True)
class Sums:
    """What is kept of rows of the journal: sources, unknown types, sequence numbers, and dead letters by reason."""

    seen: pl.DataFrame
    """`seen_sources`."""
    types: pl.DataFrame
    """`types_of`."""
    runs: pl.DataFrame
    """RUNS."""
    rejected: pl.DataFrame
    """REJECTED."""

    @classmethod
    def added(cls, parts: Sequence[Sums]) -> Sums:
        """Those of all parts of the rows, which come in the order of the journal; at least one."""
        seen, types, runs, rejected = (pl.concat([getattr(part, name) for part in parts]) for name in PARTS)
        return cls(added_sources(seen), added_types(types), runs, added_rejected(rejected))


PARTS = tuple(part.name for part in fields(Sums))


def sums_of(rows: pl.DataFrame) -> Sums:
    """Of rows of the journal (COLUMNS, and `element` where they have that), of which the first of each event counts."""
    rows = rows.lazy().filter(is_event(rows.schema)).select(COLUMNS).collect()
    # Backfilled events are no activity of their source, and bring no current sequence numbers.
    current = rows.filter(~is_of_the_past())
    # Nor are redriven dead letters.
    seen = seen_sources(current.with_columns(received_at=pl.coalesce("first_received_at", "received_at")))
    unknown = of_unknown_type(events_of_sources(rows))
    return Sums(seen, types_of(unknown), runs_of(events_of_sources(current)), rejected_of(rows))


BY_DEFAULT = Conditions.of(IngestionConfig())


class Bookkeeping:
    """The one who keeps it, for one driver of ingestion."""

    def __init__(
        self,
        ownership: Ownership,
        journal: DeltaWriter,
        frontier: datetime | None,
        limits: Limits = LIMITS,
        conditions: Conditions = BY_DEFAULT,
    ) -> None:
        """Take up what `journal`, which ends at this `frontier`, holds beyond the position."""
        self._ownership = ownership
        self._limits = limits
        self._conditions = conditions
        self._has_rejected = True
        """Whether a spike may begin or end: not known at the start."""
        self._journal = str(journal.table.metadata().id)
        self._pending = pl.DataFrame(schema=RUNS)
        self._written = 0
        self.unlisted = 0
        """Events of sources that were not listed, since the start."""
        position, reached = self._position(journal.next_lsn, frontier)
        rows = _rows(journal, position, reached)
        if reached is not None:
            before = rows.filter(pl.col("lsn") < position, ~is_of_the_past())
            self._pending = _not_before(runs_of(events_of_sources(before)), minute_of(reached))
        missed = rows.filter(pl.col("lsn") >= position)
        if not missed.is_empty():
            self.take(missed, journal.next_lsn, frontier)

    def _position(self, next_lsn: int, frontier: datetime | None) -> tuple[int, datetime | None]:
        with self._ownership.transaction() as cursor:
            found = cursor.execute(_POSITION, [self._ownership.job, self._journal]).fetchone()
            if found is not None and next_lsn - self._limits.missed_rows <= found[0] <= next_lsn:
                return int(found[0]), found[1]
            # An older version kept no position, but took up all. Of another journal, one that was rolled back, or after
            # a database was, it continues with the next rows.
            if found is not None:
                log.warning("bookkeeping continues at the journal's end", position=found[0], next_lsn=next_lsn)
            cursor.execute(_MOVE, [self._ownership.job, self._journal, next_lsn, frontier])
        return next_lsn, frontier

    def take(self, rows: pl.DataFrame, next_lsn: int, frontier: datetime | None) -> Counts:
        """Take up rows of the journal (COLUMNS) that were committed, one for each event, all below `next_lsn`."""
        return self.add(sums_of(rows), next_lsn, frontier)

    def add(self, sums: Sums, next_lsn: int, frontier: datetime | None) -> Counts:
        """The same, of rows that were summed by others."""
        seen, unknown = sums.seen, sums.types
        pending = pl.concat([self._pending, sums.runs])
        until = minute_of(frontier) if frontier is not None else 0
        is_over = until != self._written
        if seen.is_empty() and unknown.is_empty() and sums.rejected.is_empty() and not is_over:
            return {}
        over = pending.filter(pl.col("minute") < until)
        pending = _not_before(pending, until)
        with self._ownership.transaction() as cursor:
            listed = within_limits(cursor, seen, self._limits) if len(seen) else seen
            if not listed.is_empty():
                fold_sources(cursor, listed)
            if not unknown.is_empty():
                fold_types(cursor, unknown, self._limits)
            for part, end in _parts(over, until):
                fold_sequences(cursor, part, end, self._limits)
            if len(pending) > self._limits.pending_runs:
                log.warning(
                    "too many sequence numbers wait for the frontier: they are forgotten, and sources count from here",
                    runs=len(pending),
                )
                restart_sequences(cursor, pending)
                pending = pending.clear()
            if frontier is not None and is_over:
                fold_silences(cursor, frontier, self._conditions, self._limits)
            has_rejected = self._has_rejected or not sums.rejected.is_empty()
            if has_rejected:
                has_rejected = fold_spikes(cursor, sums.rejected, self._conditions)
            cursor.execute(_MOVE, [self._ownership.job, self._journal, next_lsn, frontier])
        self._pending, self._written, self._has_rejected = pending, until, has_rejected
        unlisted = int(seen["events"].sum()) - int(listed["events"].sum())
        self.unlisted += unlisted
        return {(metrics.UNKNOWN_TYPE,): int(unknown["events"].sum()), (metrics.UNLISTED,): unlisted}

    def __len__(self) -> int:
        """How many runs of numbers wait for the frontier."""
        return len(self._pending)


def _rows(journal: DeltaWriter, position: int, reached: datetime | None) -> pl.DataFrame:
    """Rows beyond the position, and those whose minute was not over there."""
    since = instant_of_minute(minute_of(reached)) if reached is not None else None
    beyond = pl.col("lsn") >= position
    if since is not None:
        beyond |= (pl.col("received_at") >= since) & (pl.col("log_date") >= (since - CLOCK_SKEW).date())
    dataset = journal.table.to_pyarrow_dataset()
    # A source has sent an event once, however many elements it has.
    found = pl.scan_pyarrow_dataset(dataset)
    return found.filter(beyond & is_event(found.collect_schema())).select(COLUMNS).collect()


def _not_before(runs: pl.DataFrame, minute: int) -> pl.DataFrame:
    return runs.filter(pl.col("minute") >= minute)


def _parts(runs: pl.DataFrame, until: int) -> Iterator[tuple[pl.DataFrame, int]]:
    """Runs by whole minutes, in order, each part of about MAX_NUMBERS; and the minute before which a part ends."""
    minutes = runs.group_by("minute").agg(numbers=(pl.col("last") - pl.col("first") + 1).sum()).sort("minute")
    of_part = minutes.with_columns(part=pl.col("numbers").cum_sum() // MAX_NUMBERS)
    parts = runs.join(of_part.select("minute", "part"), on="minute").partition_by("part", maintain_order=False)
    parts.sort(key=lambda part: part["minute"][0])
    for number, part in enumerate(parts, start=1):
        end = until if number == len(parts) else int(part["minute"].max()) + 1  # type: ignore[arg-type]
        yield part.drop("part"), end
