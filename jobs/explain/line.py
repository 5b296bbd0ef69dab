"""The document of a month's bill lines: the minutes that they are the sum of, and some of the usage behind them.

Lines of a meter that bills a day or month as a whole have members instead of minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import date, datetime

import polars as pl

from jobs.explain.arithmetic import Entry, Row, WindowKey
from jobs.explain.checks import wrong_stragglers
from jobs.explain.days import Span, span_of_month
from jobs.explain.documents import Document, line_objects
from jobs.explain.explanation import Billed, Problems, Sources, document_of
from jobs.explain.fees import beside_usage
from jobs.explain.members import MAX_LOOKS, members_of_line
from jobs.explain.records import Found, Tables
from metering.digits import plain
from metering.windows import MINUTE


@dataclass(frozen=True)
class LineSelection:
    """A month (its first day) of an account; of one model, meter or currency, or of any (None)."""

    account: str
    month: date
    model: str | None = None
    meter: str | None = None
    currency: str | None = None

    def names(self, row: Row) -> bool:
        """Whether a row with a model, a meter and a currency is of it."""
        return all(getattr(self, name) in (None, row[name]) for name in ("model", "meter", "currency"))

    def holds(self, key: WindowKey) -> bool:
        """Whether a window is of it."""
        return self.names(key._asdict())


def explain_line(sources: Sources, query: LineSelection) -> Document | None:
    """The document: all minutes of the lines are summed, `limit` of them listed, with as many rows of their usage.

    `members` lists `limit` members of the periods that are billed as a whole, each with a row of usage that added it.
    `fees` and `included` are what the bill has beside usage (`beside_usage`).
    None: there is no such line of usage. Days of another month that overlap with this one's are summed with it.
    """
    stored, limit = sources.stored, sources.limit
    lines = [row for row in stored.lines(query.account, query.month) if query.names(row)]
    span = span_of_month(stored, query.account, query.month)
    if not lines or span is None:
        return None
    keys, windows_found = stored.windows_of(query.account, span.starts, span.ends, _filters(query), limit)
    places = sorted({(key.window_start, key.account) for key in keys})
    windows = {cell: row for cell, row in stored.windows(places).items() if cell[0] in keys}
    rows = stored.members(query.account, query.month, _filters(query), limit)
    of_sets = members_of_line(sources.tables, query.account, rows)
    found, entries = _usage(sources, query, keys, of_sets.lsns)
    lsns = {entry.usage_lsn for entry in entries}
    billed = Billed(
        windows,
        [row for row in stored.stragglers(places) if query.names(row)],
        [row for row in stored.corrections(places) if query.names(row)],
        windows_found,
    )
    mine = [row for row in billed.stragglers if row["usage_lsn"] in lsns]
    sure = [*_wrong_sums(sources, query, span), *_wrong_sets(sources, query)]
    sure += wrong_stragglers(entries, mine, stored.corrections(places, lsns))
    document = document_of(sources, found, entries, billed, Problems(sure, (), None))
    versions = {row["price_version"] for row in lines}
    beside = beside_usage(stored.database, query.account, query.month, query.names, versions)
    cut = {**(document["cut"] or {}), **({"members": of_sets.there_are} if of_sets.is_cut else {})}
    of_line = {"line": _line_objects(lines, entries, rows), "members": of_sets.listed, "cut": cut or None}
    return {**document, **of_line, **beside}


def _line_objects(lines: Collection[Row], entries: Collection[Entry], members: Collection[Row]) -> list[Document]:
    """Those of members have no `contribution`: rows of usage do not add up to them."""
    of_sets = {row["meter"] for row in members}
    objects = line_objects(lines, entries, is_all=True)
    return [{**row, "contribution": None} if row["meter"] in of_sets else row for row in objects]


def _filters(query: LineSelection) -> dict[str, str | None]:
    return {"model": query.model, "meter": query.meter, "currency": query.currency}


def _wrong_sums(sources: Sources, query: LineSelection, span: Span) -> list[str]:
    """Where minutes do not add up to their days, which lines are sums of, as sentences."""
    meters = None if query.meter is None else [query.meter]
    rows = sources.stored.unequal_days(query.account, span.days, span.starts, span.ends, meters)
    return [
        f"{query.account} {query.month:%Y-%m}, {row['model']} {row['meter']} {row['currency']}, price version "
        f"{row['price_version']}: the minutes make {plain(row['quantity'])} for {plain(row['amount'])}, the days have "
        f"{plain(row['day_quantity'])} for {plain(row['day_amount'])}"
        for row in rows
        if query.names(row)
    ]


def _wrong_sets(sources: Sources, query: LineSelection) -> list[str]:
    """Where the members of a period do not make its quantity, as sentences."""
    return [
        f"{query.account} {row['first_day']}, {row['model']} {row['meter']} {row['currency']}, price version "
        f"{row['price_version']}: the members make {plain(row['made'])}, the line has {plain(row['quantity'])}"
        for row in sources.stored.unequal_sets(query.account, query.month, _filters(query))
    ]


def _usage(
    sources: Sources, query: LineSelection, keys: Collection[WindowKey], of_members: Collection[int]
) -> tuple[Found, tuple[Entry, ...]]:
    """The first rows of usage that are in these windows of the line, by lsn, and what they add to it.

    `of_members`: further rows, which add members.

    Where there are more, `usage_found` counts also those that have no quantity of the meter: they are not read.
    """
    tables, limit = sources.tables, sources.limit
    lsns, wanted = _lsns(tables, query, {key.window_start for key in keys}), set(keys)
    held: list[Entry] = []
    looked_at = 0
    while looked_at < min(len(lsns), MAX_LOOKS * limit) and len({entry.usage_lsn for entry in held}) < limit:
        rows = tables.of_usage_only(lsns[looked_at : looked_at + limit])
        held += [entry for entry in sources.entries(rows) if entry.window in wanted and entry.month == query.month]
        looked_at += limit
    mine = sorted({entry.usage_lsn for entry in held})
    listed = set(mine[:limit])
    there_are = len(mine) if looked_at >= len(lsns) else len(lsns)
    shown = sorted(listed.union(of_members))[:limit]
    found = replace(tables.of_usage(shown), usage_found=max(there_are, len(listed.union(of_members))))
    return found, tuple(entry for entry in held if entry.usage_lsn in listed)


def _lsns(tables: Tables, query: LineSelection, starts: Collection[datetime]) -> list[int]:
    """Of the usage of these minutes that may be of the line."""
    if not starts:
        return []
    first, last = min(starts), max(starts) + MINUTE
    where = (pl.col("event_time") >= first) & (pl.col("event_time") < last) & (pl.col("account") == query.account)
    for name, value in (("model", query.model), ("currency", query.currency)):
        where &= pl.lit(True) if value is None else pl.col(name) == value
    rows = tables.usage.between("event_time", first, last).rows(where, ("lsn", "event_time"))
    minutes = pl.Series(list(starts), dtype=rows.schema["event_time"])
    return rows.filter(pl.col("event_time").dt.truncate("1m").is_in(minutes.implode()))["lsn"].sort().to_list()
