"""Found rows → one document: the line, the windows, usage, outcomes and records, and whether it adds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import polars as pl

from cli.usage import billing_progress
from cli.way_down.arithmetic import Cell, Entry, Row, WindowKey, entries_of
from cli.way_down.checks import wrong_prices, wrong_products, wrong_windows
from cli.way_down.files import Files
from cli.way_down.prices import price_versions
from cli.way_down.records import Found, Tables
from cli.way_down.stored import Stored
from cli.way_down.told import Told, lines_told, outcomes_told, records_told, usage_told, windows_told
from metering.lateness import window_state
from metering.windows import MINUTE, Window

RECORDS_OF_A_ROW = 4
"""A request and its completion, and a repeat of each."""


@dataclass(frozen=True)
class Sources:
    """One snapshot of the database, and tables that are at least as new."""

    stored: Stored
    tables: Tables
    prices: Files
    limit: int
    """So many rows of usage are told, and RECORDS_OF_A_ROW times as many records."""


@dataclass(frozen=True)
class WindowAsked:
    """A minute of an account; of one model or meter, or of any (None)."""

    account: str
    window: Window
    model: str | None = None
    meter: str | None = None

    def holds(self, key: WindowKey) -> bool:
        """Whether a window is asked for."""
        return self.model in (None, key.model) and self.meter in (None, key.meter)

    def names(self, row: Row) -> bool:
        """Whether a row with a model and a meter is of it."""
        return self.model in (None, row["model"]) and self.meter in (None, row["meter"])


@dataclass(frozen=True)
class Billed:
    """What the database has of windows: their parts by price version, what came late, and what corrected them."""

    windows: Mapping[Cell, Row]
    stragglers: Sequence[Row]
    corrections: Sequence[Row]


def explain_found(sources: Sources, found: Found) -> Told:
    """The document of rows that were found: windows and lines say how much of them is theirs."""
    stored = sources.stored
    billed_to = stored.billed_to()
    entries = entries_of(found.usage, stored.decisions(found.usage["lsn"]), billed_to)
    places = {(one.window.window_start, one.window.account) for one in entries}
    touched = {one.window for one in entries}
    lsns = found.usage["lsn"].to_list()
    billed = Billed(
        {cell: row for cell, row in stored.windows(places).items() if cell[0] in touched},
        stored.stragglers(places, lsns),
        stored.corrections(places, lsns),
    )
    return _document(sources, found, entries, billed, wrong_products(entries, billed.windows))


def explain_window(sources: Sources, asked: WindowAsked) -> Told:
    """The document of a whole window: all usage of it is added up, and `limit` rows of it are told."""
    stored, tables = sources.stored, sources.tables
    billed_to = stored.billed_to()
    usage = tables.usage_of_window(asked.account, asked.window)
    every = entries_of(usage, stored.decisions(usage["lsn"]), billed_to)
    entries = tuple(one for one in every if asked.holds(one.window))
    place = [(asked.window.start, asked.account)]
    billed = Billed(
        {cell: row for cell, row in stored.windows(place).items() if asked.holds(cell[0])},
        [row for row in stored.stragglers(place) if asked.names(row)],
        [row for row in stored.corrections(place) if asked.names(row)],
    )
    problems = wrong_products(entries, billed.windows) + wrong_windows(entries, billed.windows, billed.corrections)
    mine = usage.filter(pl.col("lsn").is_in(list({one.usage_lsn for one in entries})))
    listed = tables.of_usage(mine["lsn"].head(sources.limit))
    document = _document(sources, listed, entries, billed, problems)
    return {**document, "cut": _cut(sources.limit, len(mine), len(listed.records))}


def _lines(stored: Stored, entries: Sequence[Entry]) -> list[Row]:
    """The lines of the months that entries are billed in, of their meters."""
    meters: defaultdict[tuple[str, date], set[str]] = defaultdict(set)
    for one in entries:
        meters[one.window.account, one.month].add(one.window.meter)
    return [row for (account, month), names in sorted(meters.items()) for row in stored.lines(account, month, names)]


def _document(
    sources: Sources,
    found: Found,
    entries: Sequence[Entry],
    billed: Billed,
    problems: Sequence[str],
) -> Told:
    stored, limit = sources.stored, sources.limit
    prices = price_versions(sources.prices, sources.tables.journal, entries)
    problems = [*problems, *wrong_prices(entries, prices)]
    frontier, closed = billing_progress(stored.database)

    def state_of(key: WindowKey, corrected: bool) -> str:
        window = Window(key.window_start, key.window_start + MINUTE)
        return window_state(window, None, frontier, corrected=corrected, closed_before=closed.of(key.meter)).value

    usage, records = found.usage.head(limit), found.records.head(RECORDS_OF_A_ROW * limit)
    return {
        "line": lines_told(_lines(stored, entries), entries) or None,
        "windows": windows_told(entries, billed.windows, billed.corrections, state_of),
        "usage": usage_told(usage, entries, stored.billed_to()),
        "outcomes": outcomes_told(usage),
        "records": records_told(records),
        "stragglers": list(billed.stragglers),
        "corrections": list(billed.corrections),
        "prices": prices,
        "adds_up": not problems,
        "differences": problems,
        "cut": _cut(limit, len(found.usage), len(found.records)),
    }


def _cut(limit: int, usage: int, records: int) -> Told | None:
    """How many rows there are of what is not all told; None where all is. Records are those of the usage that is."""
    found = {"usage": usage} if usage > limit else {}
    found |= {"records": records} if records > RECORDS_OF_A_ROW * limit else {}
    return found or None
