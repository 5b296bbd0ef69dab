"""The audit within a history: the shipped functions on what the tables hold then, without Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.audit.bills.correction_rows import decisions
from jobs.audit.bills.journal_decisions import wrong_decisions
from jobs.audit.bills.months import wrong_months
from jobs.audit.bills.proof import OF_REQUESTS, by_bucket, compare_bills, compared_sessions, sessions_by_bucket, span_of
from jobs.audit.compare.columns import Wrong
from jobs.audit.compare.journal_versions import wrong_versions
from jobs.audit.recompute.basis import EVERYTHING, Scope, first_log_date, pin
from jobs.audit.recompute.examination import SUM, USAGE_READ, as_table, examine, journal_read
from jobs.audit.recompute.expected import Pinned
from jobs.audit.recompute.late_contracts import (
    READ_OF_VALIDATED,
    VALIDATED_FROM,
    later_contracts,
    mark_late_contract,
    sent_again,
)
from jobs.audit.recompute.reversals import is_examined
from jobs.audit.tables.append import append
from jobs.audit.tables.database import stored
from jobs.audit.tables.retained import has_each_once, retained_rows
from jobs.audit.tables.spill import by_part
from jobs.billing.sums import COLUMNS
from jobs.joins.config import JoinsConfig
from jobs.runtime.delta.table import open_table
from jobs.streams import ACCOUNTS, Table


@dataclass(frozen=True)
class Examined:
    """What one audit found: how it compared, what has no known cause, and how many rows put the rest right."""

    pinned: Pinned
    faults: list[Any]
    appended: int


def audit(
    tables: str,
    now: datetime,
    *,
    appends: bool = True,
    max_rows: int = 1_000_000,
    present: JoinsConfig = JoinsConfig(),  # noqa: B008 -- frozen
    scope: Scope = EVERYTHING,
) -> Examined | None:
    """One audit of all that is there, or of a `scope`; None before joins has made anything.

    `present`: what joins is started with.
    """
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None or not usage.file_uris():
        return None
    tables_of = {Table.JOURNAL: journal, Table.USAGE: usage}
    held = {name: retained_rows(table) for name, table in tables_of.items()}
    pinned = pin(usage, held.values(), tables, present, replace(scope, max_rows=max_rows))
    rows = _rows(journal, (*journal_read(pinned), *VALIDATED_FROM, *READ_OF_VALIDATED)).filter(
        pl.col("lsn") < pinned.position
    )
    concerned = mark_late_contract(rows.filter(is_examined()), late=False)
    if later := later_contracts(journal, pinned):
        unknown = rows.filter(later.wanted.is_wanted(rows))
        read = [name for name in journal_read(pinned) if name in rows.columns]
        both = (
            mark_late_contract(later.validated(rows), late=False),
            mark_late_contract(later.taken(unknown), late=True),
        )
        taken = mark_late_contract(later.takes(unknown, read), sent_again(pl.concat(both)), late=True)
        concerned = pl.concat([concerned, taken], how="diagonal")
    found = examine(concerned, _rows(usage, USAGE_READ), pinned)
    (stream,) = found.filter(pl.col("kind") == SUM)["corrections"]
    corrections = as_table(stream)
    if appends and len(corrections):
        append(usage, corrections, now)
    faults = [
        *found.filter(pl.col("kind") != SUM).to_dicts(),
        *(
            held[name]
            for name, table in tables_of.items()
            if held[name].missing or not has_each_once(table, held[name])
        ),
        *wrong_versions(
            journal,
            {Table.ACCOUNTS: pinned.accounts, Table.PRICES: pinned.prices},
            held[Table.JOURNAL].first,
            pinned.position,
        ),
        *wrong_decisions(journal, usage, held, pinned.position),
    ]
    return Examined(pinned, faults, len(corrections))


def proof(tables: str, database: str, now: datetime) -> Iterator[str]:
    """What is wrong of all that billing and sessionization hold by now, also if only a period is asked for."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    for asked in (EVERYTHING, Scope(since=hour), Scope(until=hour), Scope(hour - timedelta(days=1), hour)):
        for check, wrong in proved(tables, database, asked).items():
            if wrong.found:
                yield f"{check} of {asked}: {wrong.first} ({wrong.found} in all)"


def proved(tables: str, database: str, asked: Scope = EVERYTHING) -> dict[str, Wrong]:
    """I5, I6, I8 and I12, as far as there is something to compare."""
    made = stored(database, asked)
    usage, journal = open_table(tables, Table.USAGE), open_table(tables, Table.JOURNAL)
    if usage is None or journal is None or not usage.file_uris():
        return {}
    span, decided = span_of(asked, retained_rows(usage).since, usage, made.billed), decisions(usage, made.billed)
    since = first_log_date(usage, JoinsConfig(), asked)
    concerns = (pc.field("lsn") < made.billed.position) & span.occurred
    names = [field.name for field in usage.schema().fields if field.name in COLUMNS]
    logged = usage.to_pyarrow_dataset().to_table(filter=None if since is None else pc.field("log_date") >= since)
    rows = logged.filter(concerns).select(names)
    parts = by_part(by_bucket(rows, made.billed, decided).sort("bucket").iter_rows())
    found = compare_bills(parts, made.billed, decided, usage, span)
    accounts = open_table(tables, Table.ACCOUNTS)
    versions = ACCOUNTS.empty_table() if accounts is None else accounts.to_pyarrow_table()
    wrong = {"I6": found.sums + made.roll_ups, "I8": found.corrections, "I12": wrong_months(made.months, versions)}
    if asked.is_everything and made.sessions.gaps_reached and retained_rows(journal).since is None:
        requests = _rows(journal, OF_REQUESTS).to_arrow()
        cut = by_part(sessions_by_bucket(requests, made.sessions).sort("bucket").iter_rows())
        wrong["I5"] = compared_sessions(cut, made.sessions)
    return wrong


def _rows(table: DeltaTable, columns: tuple[str, ...]) -> pl.DataFrame:
    held = {field.name for field in table.schema().fields}
    return pl.DataFrame(table.to_pyarrow_table(columns=sorted(held & set(columns))))
