"""How long rows are kept: whole days go from the old end, never past a reader, an open month or what decides.

Nor what an audit may need to correct what a request bills. Rows that hold `rules` stay, because what was decided later
is recomputed by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from pydantic import BaseModel, ConfigDict, Field

from jobs.joins.correction_horizon import content_margin, correction_horizon
from jobs.joins.started import started_config
from jobs.journal.elements import is_record_arrow
from jobs.runtime.delta.deciding_rows import deciding_rows, files_of
from jobs.runtime.delta.table import FRONTIER, REMOVED, instant_of, open_to_change
from jobs.runtime.effective_rules import EffectiveRules, read_history
from jobs.streams import Table
from metering.lateness import MAX_FUTURE
from metering.reports import OFF_AFTER
from metering.vocabulary import ALWAYS, Job

MEMORY_DAYS = 36
"""Accept window and dedupe horizon by default, and a day of clocks. Longer ones hold back by `remembered_days`."""
ZONES = timedelta(days=2)
"""A month begins at most 26 h before UTC's, in any zone and after any change of zone."""
_INCOMPLETE = timedelta(days=2)
"""What was received so soon after removed rows may lack one of its own: clocks differ by a day at most, and a time-out
is at most a day. The audit leaves it alone."""


class Retention(BaseModel):
    """Days that are kept, per table; None is for ever."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batches_days: int | None = Field(default=14, ge=1)
    exits_days: int | None = Field(default=90, ge=1)
    retired_sources_days: int | None = Field(default=90, ge=MEMORY_DAYS)
    isolated_records_days: int | None = Field(default=400, ge=1)
    retracted_sessions_days: int | None = Field(default=400, ge=1)
    journal_days: int | None = Field(default=None, ge=MEMORY_DAYS)
    usage_days: int | None = Field(default=None, ge=MEMORY_DAYS)


@dataclass(frozen=True)
class Removed:
    """What went: rows of days before `before` (UTC). Nothing is older where a reader or an open month held it back."""

    table: str
    before: date
    rows: int


_MEMORY = """
SELECT ceil(greatest((config ->> 'dedupe_horizon_seconds')::float8, (config ->> 'accept_past_seconds')::float8) / 86400)
FROM jobs WHERE job = 'ingestion'
"""


def remembered_days(connection: psycopg.Connection[Any]) -> int:
    """Days that ingestion, as it was last started, remembers, and a day of clocks: no younger row may go."""
    row = connection.execute(_MEMORY).fetchone()
    return MEMORY_DAYS if row is None or row[0] is None else max(MEMORY_DAYS, int(row[0]) + 1)


def _horizons(tables: str, connection: psycopg.Connection[Any]) -> tuple[timedelta, timedelta]:
    """`correction_horizon` and `content_margin`, by the rules that made usage, and what joins was started with last."""
    journal, usage = (open_to_change(tables, table) for table in (Table.JOURNAL, Table.USAGE))
    present = started_config(connection)
    history = () if usage is None else read_history(usage)[0]
    declared = (*history, EffectiveRules(1, present.deciding))
    return correction_horizon(history or declared, present, journal), content_margin(declared)


def oldest_open_day(today: date) -> date:
    """The first day on which a row of the open month or the one before may have been received, in any time zone."""
    # West of UTC, or after a change of zone, it is still the month before.
    last_of_previous = (today - ZONES).replace(day=1) - timedelta(days=1)
    return last_of_previous.replace(day=1) - ZONES - MAX_FUTURE


def first_retained(today: date, days: int, horizon: timedelta = timedelta(), margin: timedelta = timedelta()) -> date:
    """The first day that is kept: `days` whole days before today, at least the horizon, and all that is open.

    What was received in these days is corrected by what was received up to the horizon (`correction_horizon`) before,
    and which of their contents count is known by what was received up to the margin (`content_margin`) before that.
    """
    horizon_days, margin_days = (-(-duration // timedelta(days=1)) for duration in (horizon, margin))
    first = min(today - timedelta(days=max(days, horizon_days)), oldest_open_day(today) - _INCOMPLETE)
    return first - timedelta(days=horizon_days + margin_days)


# The last batch of a job stays, however old.
_BATCHES = """
DELETE FROM batches WHERE committed_at < %(before)s
    AND first_position < (SELECT max(first_position) FROM batches AS newest WHERE newest.job = batches.job)
"""
_EXITS = "DELETE FROM exits WHERE ended_at < %(before)s"
# The journal has them as dead letters.
_ISOLATED = "DELETE FROM isolated_records WHERE journalled_at < %(before)s"
# Silence is measured at the frontier, as everywhere. A source that comes back at this moment is left alone.
_SOURCES = """
DELETE FROM sources WHERE (source, source_epoch) IN (
    SELECT source, source_epoch FROM sources
    WHERE last_seen_at < %(before)s AND last_seen_at < (
        SELECT (progress ->> 'frontier')::timestamptz
               - make_interval(secs => (config ->> 'source_retired_after_seconds')::float8)
        FROM jobs WHERE job = 'ingestion'
    )
    ORDER BY source, source_epoch FOR UPDATE SKIP LOCKED
)
"""
_SESSIONS = "DELETE FROM sessions WHERE retracted_at < %(before)s"


def retain_rows(connection: psycopg.Connection[Any], retention: Retention, today: date) -> Iterator[Removed]:
    """Remove what is too old from Postgres, one transaction per table; `connection` commits by itself."""
    remembered = remembered_days(connection)
    steps = (
        ("batches", _BATCHES, _days_before(today, retention.batches_days)),
        ("exits", _EXITS, _days_before(today, retention.exits_days)),
        ("isolated_records", _ISOLATED, _days_before(today, retention.isolated_records_days)),
        ("sources", _SOURCES, _days_before(today, _at_least(remembered, retention.retired_sources_days))),
        (
            "sessions",
            _SESSIONS,
            None if (kept := retention.retracted_sessions_days) is None else first_retained(today, kept),
        ),
    )
    for table, statement, before in steps:
        if before is not None:
            midnight = datetime.combine(before, time(), UTC)
            yield Removed(table, before, connection.execute(statement, {"before": midnight}).rowcount)


def _days_before(today: date, days: int | None) -> date | None:
    return None if days is None else today - timedelta(days=days)


def _at_least(remembered: int, days: int | None) -> int | None:
    return None if days is None else max(remembered, days)


def refuse_newer_tables(tables: str) -> None:
    """Raises Refused where a newer version writes a table that rows are removed from: before any row is."""
    for table in READERS:
        open_to_change(tables, table)


_POSITIONS = """
SELECT job, next_position FROM positions
WHERE input = %s AND (job <> 'analytics' OR job IN (
    SELECT job FROM jobs WHERE state <> 'stopped' AND updated_at > clock_timestamp() - %s
))
"""
READERS = {Table.JOURNAL: (Job.SESSIONIZATION,), Table.USAGE: (Job.BILLING, Job.ANALYTICS)}
"""Who reads a table into Postgres; the journal is read by joins too, whose position is in usage."""


def retain_days(
    tables: str, table: Table, connection: psycopg.Connection[Any], days: int | None, today: date
) -> Removed | None:
    """Remove whole log dates from a Delta table; jobs may write meanwhile, and streams pass over the commits.

    None when it is kept for ever, or when there is no such table yet. Raises Refused where a newer version writes it.
    """
    found = open_to_change(tables, table)
    if days is None or found is None:
        return None
    frontier = instant_of(found.transaction_version(FRONTIER))
    reached = today if frontier is None else min(today, frontier.date())
    before = first_retained(reached, max(days, remembered_days(connection)), *_horizons(tables, connection))
    read = _first_lsn_needed(tables, table, connection)
    rows = 0
    for day, (records, highest) in sorted(_log_dates(found).items()):
        # The row before a position is its fingerprint, so it stays.
        if day >= before or highest >= read - 1:
            break
        rows += _remove(found, day, records)
    return Removed(table.value, before, rows)


def _first_lsn_needed(tables: str, table: Table, connection: psycopg.Connection[Any]) -> int:
    """The lowest lsn that a reader has yet to read or still remembers; 1 before one has begun."""
    stored = dict(connection.execute(_POSITIONS, [table.value, OFF_AFTER]).fetchall())
    # Views are not held for ever: analytics may have been switched off.
    needed: list[int] = [stored.get(job, 1) for job in READERS[table] if job in ALWAYS or job in stored]
    if table is Table.JOURNAL:
        usage = open_to_change(tables, Table.USAGE)
        joined = None if usage is None else usage.transaction_version(Table.JOURNAL.value)
        waiting = None if usage is None else usage.transaction_version("waiting.lsn")
        needed += [joined or 1, waiting or joined or 1]
    return min(needed)


def _log_dates(table: DeltaTable) -> Mapping[date, tuple[int, int]]:
    """(rows, highest lsn) by log date, from the statistics in the table's log."""
    days: dict[date, tuple[int, int]] = {}
    actions = pa.table(table.get_add_actions(flatten=True))
    for action in actions.select(["partition.log_date", "num_records", "max.lsn"]).to_pylist():
        day = action["partition.log_date"]
        records, highest = days.get(day, (0, 0))
        days[day] = records + action["num_records"], max(highest, action["max.lsn"])
    return days


def removed_rows(topic: str, partition: int) -> str:
    """The transaction of the journal that counts the rows of a partition that were removed from it, one a record."""
    return f"removed:{topic}:{partition}"


def _remove(table: DeltaTable, day: date, records: int) -> int:
    """Remove a log date; how many rows went. The journal says so with them: else they would be missing in its sum."""
    deciding = deciding_rows(table, day)
    if deciding == records:
        return 0
    where = f"log_date = DATE '{day}'" if deciding == 0 else f"log_date = DATE '{day}' AND rules IS NULL"
    counted = [
        Transaction(name, (table.transaction_version(name) or 0) + rows)
        for (topic, partition), rows in _rows_by_partition(table, day).items()
        for name in [removed_rows(topic, partition)]
    ]
    if (before := table.transaction_version(REMOVED)) is not None:
        counted.append(Transaction(REMOVED, before + records - deciding))
    properties = CommitProperties(custom_metadata={"weir": "retain"}, app_transactions=counted)
    table.delete(where, commit_properties=properties)
    return records - deciding


def _rows_by_partition(table: DeltaTable, day: date) -> Counter[tuple[str, int]]:
    """How many records' rows of a log date of the journal go, by topic and partition; one batch in memory at a time.

    An event that is several rows counts once.
    """
    dataset, keys = files_of(table, day), ["topic", "partition"]
    found: Counter[tuple[str, int]] = Counter()
    if not {*keys} <= {*dataset.schema.names}:
        return found
    goes = (pc.field("log_date") == pc.scalar(day)) & is_record_arrow(dataset.schema)
    if "rules" in dataset.schema.names:
        goes &= ~pc.field("rules").is_valid()
    for batch in dataset.scanner(columns=keys, filter=goes).to_batches():
        counted = pa.Table.from_batches([batch]).group_by(keys).aggregate([([], "count_all")])
        found.update({(row["topic"], row["partition"]): row["count_all"] for row in counted.to_pylist()})
    return found
