"""Each step of an explanation, as the objects of `weir explain --format json`."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from jobs.explain.arithmetic import Cell, Entry, Row, Total, WindowKey, meters_by_lsn, total, total_of_stored
from jobs.explain.records import RECORD, USAGE
from metering.vocabulary import UsageCause
from metering.windows import MINUTE

Document = dict[str, Any]
OUTCOME = ("account", "request_id", "outcome", "request_lsn", "completion_lsn", "event_time", "received_at")
_LINE = ("model", "meter", "currency", "price_version")


def record_objects(records: pl.DataFrame) -> list[Document]:
    """Rows of the journal (RECORD). A value that is not UTF-8 is null, and is in `value_base64`."""
    return [_record(row) for row in records.select(RECORD).iter_rows(named=True)]


def _record(row: Row) -> Document:
    value = row["value"]
    try:
        return {**row, "value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {**row, "value": None, "value_base64": base64.b64encode(value).decode()}


def outcome_objects(usage: pl.DataFrame) -> list[Document]:
    """What joins made of records (OUTCOME): each once, with the `usage_lsns` of all rows that say it."""
    by_outcome: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for lsn, *outcome in usage.filter(pl.col("cause") != UsageCause.DECIDED).select("lsn", *OUTCOME).iter_rows():
        by_outcome[tuple(outcome)].append(lsn)
    return [
        {**dict(zip(OUTCOME, outcome, strict=True)), "usage_lsns": lsns}
        for outcome, lsns in sorted(by_outcome.items(), key=lambda item: item[1])
    ]


def usage_objects(usage: pl.DataFrame, entries: Iterable[Entry], billed_to: int | None) -> list[Document]:
    """Rows of usage (USAGE) with `is_billed` and their `meters`, quantities and amounts unsigned as they are stored.

    `decision` of a meter: what became of it where it came after its window's grace. `members`: what it adds to periods
    or removes from them (`jobs.usage_members`).
    """
    decisions = {(entry.usage_lsn, entry.window.meter): entry.decision for entry in entries}
    meters = meters_by_lsn(usage)
    return [
        {
            **row,
            "dimensions": None if row["dimensions"] is None else json.loads(row["dimensions"]),
            "is_billed": billed_to is not None and row["lsn"] < billed_to,
            "meters": [
                {**meter, "decision": decisions.get((row["lsn"], meter["meter"]))} for meter in meters[row["lsn"]]
            ],
            "members": json.loads(row["members"] or "[]"),
        }
        for row in usage.select(USAGE).iter_rows(named=True)
    ]


def window_objects(
    entries: Iterable[Entry],
    stored: Mapping[Cell, Row],
    corrections: Sequence[Row],
    state_of: Callable[[WindowKey, bool], str],
    limit: int,
) -> list[Document]:
    """Windows as `weir usage` has them, each with its `price_versions`; `contribution` is what the entries add.

    Of the `usage_rows` that add it the first `limit` are named.

    `outside_corrections` is what of that is in none of the `corrections`: of all usage of a window what it was before.
    """
    mine: defaultdict[WindowKey, list[Entry]] = defaultdict(list)
    for entry in entries:
        mine[entry.window].append(entry)
    versions: defaultdict[WindowKey, list[Row]] = defaultdict(list)
    for (key, _), row in stored.items():
        versions[key].append(row)
    # What only counts what was not reported has a row, and `weir usage` does not list it.
    listed = {key for key, rows in versions.items() if total_of_stored(rows).quantity} | mine.keys()
    correcting = {(lsn, correction["meter"]) for correction in corrections for lsn in correction["usage_lsns"]}
    return [
        {
            "window_start": key.window_start,
            "window_end": key.window_start + MINUTE,
            **{name: value for name, value in key._asdict().items() if name != "window_start"},
            "state": state_of(key, any(row["corrected"] for row in versions[key])),
            **asdict(total_of_stored(versions[key])),
            "contribution": asdict(total(mine[key])),
            "outside_corrections": _amounts(
                total(entry for entry in mine[key] if (entry.usage_lsn, entry.window.meter) not in correcting)
            ),
            "price_versions": [_version(row, mine[key]) for row in versions[key]],
            "usage_lsns": (lsns := sorted({entry.usage_lsn for entry in mine[key]}))[:limit],
            "usage_rows": len(lsns),
        }
        for key in sorted(listed, key=lambda key: key.order)
    ]


def _version(row: Row, entries: Iterable[Entry]) -> Document:
    names = ("price_version", "unit_price", "quantity", "amount")
    added = total(entry for entry in entries if entry.price_version == row["price_version"])
    return {**{name: row[name] for name in names}, "contribution": _amounts(added)}


def line_objects(lines: Iterable[Row], entries: Iterable[Entry], *, is_all: bool = False) -> list[Document]:
    """Lines of months that the entries are on, or all (account, month, _LINE): quantity x unit price = amount."""
    mine: defaultdict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.counts:
            of = entry.window
            mine[of.account, entry.month, of.model, of.meter, of.currency, entry.price_version].append(entry)
    return [
        {**row, "month": f"{row['month']:%Y-%m}", "contribution": _amounts(total(mine[line]))}
        for row in lines
        if (line := (row["account"], row["month"], *(row[name] for name in _LINE))) in mine or is_all
    ]


def _amounts(found: Total) -> Document:
    return {"quantity": found.quantity, "amount": found.amount}
