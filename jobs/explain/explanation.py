"""Found rows → one document: the line, windows, usage, outcomes and records, and whether they add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import polars as pl
from deltalake import DeltaTable

from jobs.billing_progress import billing_progress
from jobs.explain.arithmetic import Cell, Entry, Row, WindowKey, entries_of
from jobs.explain.checks import wrong_lines, wrong_prices, wrong_products, wrong_stragglers, wrong_windows
from jobs.explain.contents import contents_of
from jobs.explain.corrections import wrong_corrections, wrong_histories
from jobs.explain.database import Stored
from jobs.explain.days import placed, wrong_days
from jobs.explain.documents import (
    Document,
    line_objects,
    outcome_objects,
    record_objects,
    usage_objects,
    window_objects,
)
from jobs.explain.files import Files
from jobs.explain.prices import price_versions
from jobs.explain.records import RECORDS_OF_A_ROW, Found, Tables
from jobs.explain.reports import reports_of
from jobs.explain.reversals import reversals_of
from metering.lateness import window_state
from metering.meters import MAX_METERS
from metering.windows import MINUTE, Window

OF_A_ROW = {"usage": 1, "outcomes": 1, **dict.fromkeys(("records", "reports", "reversals"), RECORDS_OF_A_ROW)}
"""The multiple of `limit` that each list of a document may have; other lists: the meters of a row of usage."""


@dataclass(frozen=True)
class Sources:
    """One snapshot of the database, and tables that are at least as new."""

    stored: Stored
    tables: Tables
    prices: Files
    usage: DeltaTable | None
    """None before joins has made it."""

    @property
    def limit(self) -> int:
        """How many rows of usage are shown."""
        return self.tables.limit

    def entries(self, usage: pl.DataFrame) -> tuple[Entry, ...]:
        """What rows of usage (USAGE_READ) add to windows and days."""
        stored = self.stored
        return placed(stored, entries_of(usage, stored.decisions(usage["lsn"]), stored.billed_to()))


@dataclass(frozen=True)
class WindowSelection:
    """A minute of an account; of one model or meter, or of any (None)."""

    account: str
    window: Window
    model: str | None = None
    meter: str | None = None

    def holds(self, key: WindowKey) -> bool:
        """Whether a window is included."""
        return self.model in (None, key.model) and self.meter in (None, key.meter)

    def names(self, row: Row) -> bool:
        """Whether a row with a model and a meter is of it."""
        return self.model in (None, row["model"]) and self.meter in (None, row["meter"])


@dataclass(frozen=True)
class Named:
    """What a straggler or a correction is: the rows of usage that the database names, and its minutes and accounts."""

    lsns: Collection[int] = ()
    places: Collection[tuple[datetime, str]] = ()


@dataclass(frozen=True)
class Billed:
    """What the database has of windows: their parts by price version, what came late, and what corrected them."""

    windows: Mapping[Cell, Row]
    stragglers: Sequence[Row]
    corrections: Sequence[Row]
    windows_found: int = 0
    """How many there are, where only some were read."""


@dataclass(frozen=True)
class Problems:
    """What does not add up: `sure` in any case, `whole` only if no usage was removed, which `since` says."""

    sure: Sequence[str]
    whole: Sequence[str]
    since: date | None

    @property
    def differences(self) -> list[str]:
        """What is wrong for certain."""
        return [*self.sure, *(() if self.since else self.whole)]

    @property
    def adds_up(self) -> bool | None:
        """None: unknown."""
        return False if self.differences else None if self.whole else True


def explain_found(sources: Sources, found: Found, named: Named = Named()) -> Document:
    """The document of rows that were found: windows and lines say how much of them is theirs.

    What is `named` must be in usage, and its windows must have been what corrections say.
    """
    stored = sources.stored
    entries = sources.entries(found.usage)
    places = {(entry.window.window_start, entry.window.account) for entry in entries} | {*named.places}
    touched = {entry.window for entry in entries}
    read = set(found.usage["lsn"])
    lsns = {*read, *named.lsns}
    billed = Billed(
        {cell: row for cell, row in stored.windows(places).items() if cell[0] in touched},
        stored.stragglers(places, lsns),
        stored.corrections(places, lsns),
    )
    of_read = [row for row in billed.corrections if read.issuperset(row["usage_lsns"])]
    sure = wrong_stragglers(entries, billed.stragglers, billed.corrections) + wrong_corrections(entries, of_read)
    missing = sorted({*named.lsns} - read)
    whole = [f"usage lsn {lsn} is not in usage" for lsn in missing]
    for start, account in sorted({*named.places}):
        every = sources.entries(sources.tables.usage_of_window(account, Window(start, start + MINUTE)))
        whole += wrong_histories(every, stored.corrections([(start, account)]))
    since = _removed(sources.usage, min(start for start, _ in named.places)) if whole else None
    return document_of(sources, found, entries, billed, Problems(sure, whole, since))


def explain_window(sources: Sources, query: WindowSelection) -> Document:
    """The document of a whole window: all its usage is summed, and `limit` rows of it are listed."""
    stored, tables = sources.stored, sources.tables
    usage = tables.usage_of_window(query.account, query.window)
    entries = tuple(entry for entry in sources.entries(usage) if query.holds(entry.window))
    place = [(query.window.start, query.account)]
    billed = Billed(
        {cell: row for cell, row in stored.windows(place).items() if query.holds(cell[0])},
        [row for row in stored.stragglers(place) if query.names(row)],
        [row for row in stored.corrections(place) if query.names(row)],
    )
    parts = {entry.part for entry in entries}
    whole = [
        *wrong_windows(entries, billed.windows),
        *wrong_corrections(entries, billed.corrections),
        *wrong_histories(entries, billed.corrections),
        *(
            f"straggler {row['usage_lsn']}, {row['meter']}: it is not in usage"
            for row in billed.stragglers
            if (row["usage_lsn"], row["meter"]) not in parts
        ),
    ]
    since = _removed(sources.usage, query.window.start) if whole else None
    problems = Problems(wrong_stragglers(entries, billed.stragglers, billed.corrections), whole, since)
    mine = usage.filter(pl.col("lsn").is_in(list({entry.usage_lsn for entry in entries})))
    listed = tables.of_usage(mine["lsn"].head(sources.limit))
    document = document_of(sources, listed, entries, billed, problems)
    cut = {**(document["cut"] or {}), **({"usage": len(mine)} if len(mine) > len(listed.usage) else {})}
    return {**document, "usage_summed": len(mine), "cut": cut or None}


def _removed(usage: DeltaTable | None, start: datetime) -> date | None:
    """The log date from which on usage is kept, where usage of a minute may have been removed; else None."""
    # They are needed where something is missing only.
    from jobs.audit.tables.retained import retained_rows
    from jobs.joins.recovery import CLOCK_SKEW

    since = None if usage is None else retained_rows(usage).since
    return since if since and start < datetime.combine(since, time(), UTC) + CLOCK_SKEW else None


def _lines(stored: Stored, entries: Iterable[Entry]) -> list[Row]:
    """The lines of the months that entries are billed in, of their meters."""
    meters: defaultdict[tuple[str, date], set[str]] = defaultdict(set)
    for entry in entries:
        meters[entry.window.account, entry.month].add(entry.window.meter)
    return [row for (account, month), names in sorted(meters.items()) for row in stored.lines(account, month, names)]


def document_of(
    sources: Sources, found: Found, entries: Sequence[Entry], billed: Billed, problems: Problems
) -> Document:
    """The document of the rows found, of what they add up to, and of their windows in the database."""
    stored, limit = sources.stored, sources.limit
    prices = price_versions(sources.prices, sources.tables.journal, entries)
    lines = _lines(stored, entries)
    sure = [
        *problems.sure,
        *wrong_products(entries, billed.windows),
        *wrong_prices(entries, prices),
        *wrong_lines(entries, lines),
        *wrong_days(stored, entries),
    ]
    problems = Problems(sure, problems.whole, problems.since)
    frontier, closed = billing_progress(stored.database)

    def state_of(key: WindowKey, corrected: bool) -> str:
        window = Window(key.window_start, key.window_start + MINUTE)
        return window_state(window, None, frontier, corrected=corrected, closed_before=closed.of(key.meter)).value

    usage = found.usage.head(limit)
    document = {
        "line": line_objects(lines, entries) or None,
        "windows": window_objects(entries, billed.windows, billed.corrections, state_of, limit),
        "usage": usage_objects(usage, entries, stored.billed_to()),
        "outcomes": outcome_objects(usage),
        "records": record_objects(found.records),
        "stragglers": list(billed.stragglers),
        "corrections": list(billed.corrections),
        "reports": reports_of(sources.tables, sources.usage, usage),
        "reversals": reversals_of(sources.tables, usage, found.records),
        "contents": contents_of(sources.tables, sources.usage, usage),
        "prices": prices,
        "adds_up": problems.adds_up,
        "differences": problems.differences,
        "usage_removed_before": problems.since,
        "usage_summed": len(found.usage),
    }
    there_are = {"windows": billed.windows_found, "usage": found.usage_found, "records": found.records_found}
    return _cut(document, limit, there_are)


def _cut(document: Document, limit: int, found: Mapping[str, int]) -> Document:
    """The same with no list longer than the limit allows; `cut`: how many there are (`found`: where more are known)."""
    there: dict[str, int] = {}
    shortened: dict[str, Any] = {}
    for name, rows in document.items():
        is_list = isinstance(rows, list)
        shortened[name] = rows[: limit * OF_A_ROW.get(name, MAX_METERS)] if is_list else rows
        if is_list and len(shortened[name]) < (count := max(len(rows), found.get(name, 0))):
            there[name] = count
    return {**shortened, "cut": there or None}
