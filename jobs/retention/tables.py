"""Retention of the Delta tables: whole log dates go, but for rows that hold `rules`, which recompute what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from jobs.joins.correction_horizon import content_margin, correction_horizon
from jobs.joins.started import started_config
from jobs.journal.elements import is_record_arrow
from jobs.retention.days import Removed, first_retained, remembered_days
from jobs.runtime.delta.deciding_rows import deciding_rows, files_of, has_views
from jobs.runtime.delta.table import (
    AFTER_COMMIT,
    FRONTIER,
    ONE_FILE_BYTES,
    REMOVED,
    instant_of,
    open_to_change,
    removed_rows,
)
from jobs.runtime.effective_rules import EffectiveRules, read_history
from jobs.streams import Table
from metering.reports import OFF_AFTER
from metering.vocabulary import ALWAYS, Job


def _horizons(tables: str, connection: psycopg.Connection[Any]) -> tuple[timedelta, timedelta]:
    """`correction_horizon` and `content_margin`, by the rules that made usage, and what joins was started with last."""
    journal, usage = (open_to_change(tables, table) for table in (Table.JOURNAL, Table.USAGE))
    present = started_config(connection)
    history = () if usage is None else read_history(usage)[0]
    declared = (*history, EffectiveRules(1, present.deciding))
    return correction_horizon(history or declared, present, journal), content_margin(declared)


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


def _remove(table: DeltaTable, day: date, records: int) -> int:
    """Remove a log date; how many rows went. The journal says so with them: else they would be missing in its sum."""
    deciding = deciding_rows(table, day)
    if deciding == records and not has_views(table, day):
        return 0
    where = f"log_date = DATE '{day}'"
    counted = [
        Transaction(name, (table.transaction_version(name) or 0) + rows)
        for (topic, partition), rows in _rows_by_partition(table, day).items()
        for name in [removed_rows(topic, partition)]
    ]
    if (before := table.transaction_version(REMOVED)) is not None:
        counted.append(Transaction(REMOVED, before + records - deciding))
    properties = CommitProperties(custom_metadata={"weir": "retain"}, app_transactions=counted)
    if deciding == 0:
        table.delete(where, commit_properties=properties)
        return records
    # Of a part of a file, delta-rs would leave texts as views, which no filter of Arrow on a text can read.
    write_deltalake(
        table,
        files_of(table, day).to_table(filter=pc.field("rules").is_valid()),
        mode="overwrite",
        predicate=where,
        target_file_size=ONE_FILE_BYTES,
        commit_properties=properties,
        post_commithook_properties=AFTER_COMMIT,
    )
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
