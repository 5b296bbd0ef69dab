"""The price versions that usage names: the price, since when, and the record that published it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from jobs.explain.arithmetic import Entry
from jobs.explain.files import Files
from jobs.queries.contracts import words_of
from jobs.streams import AUTHOR
from metering.instants import EPOCH

PRICE = ("plan", "model", "meter", "currency", "effective_from", "unit_price", "deleted", *AUTHOR, "terms")
RECORD_OF = ("topic", "partition", "offset", "lsn", "received_at")
EARLIER_NAME = "told_by"
"""Of `reported_by`; printed for one version after 0.2."""


def price_versions(prices: Files, journal: Files, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Versions that entries name (PRICE), each with its `record` (RECORD_OF) in the journal.

    `model` is what the price is for (`metering.price_models`): the usage's own, how it begins, with its conditions.
    `terms`: tiers or a package in words, in place of a unit price; else null.
    `changed_by` and `changed_at`: who made it the price, and when; null where a release did not keep it. `committed_at`
    and `reported_by` are as the record has them: when the change was committed, and the name of the connector that
    published it (`weir`: our own). `told_by` is the earlier name of `reported_by`.
    """
    versions_of_entries = {
        (version, entry.window.meter, entry.window.currency)
        for entry in entries
        if (version := entry.price_version) is not None
    }
    if not versions_of_entries:
        return []
    versions = sorted({version for version, *_ in versions_of_entries})
    records = {row["lsn"]: row for row in journal.by_lsn(versions, (*RECORD_OF, "value")).iter_rows(named=True)}
    found = prices.by_lsn(versions, ("lsn", *PRICE)).sort("lsn", "plan", "meter").iter_rows(named=True)
    return [
        {
            "price_version": row["lsn"],
            **{name: row[name] for name in PRICE},
            "terms": words_of(row["terms"]),
            **_source_of(records.get(row["lsn"])),
        }
        for row in found
        if (row["lsn"], row["meter"], row["currency"]) in versions_of_entries
    ]


def _source_of(record: dict[str, Any] | None) -> dict[str, Any]:
    """The source that the record of a change names; nothing where `weir retain` has removed it."""
    if record is None:
        return {"committed_at": None, "reported_by": None, EARLIER_NAME: None, "record": None}
    source = _source(record["value"])
    at_ms = source.get("ts_ms")
    return {
        "committed_at": _instant(at_ms) if isinstance(at_ms, int) else None,
        "reported_by": source.get("name"),
        EARLIER_NAME: source.get("name"),
        "record": {name: record[name] for name in RECORD_OF},
    }


def _source(value: bytes | None) -> dict[str, Any]:
    """The part `source` of Debezium's envelope; empty where the record has none."""
    try:
        envelope = json.loads(value or b"null")
    except ValueError:
        return {}
    source = envelope.get("source") if isinstance(envelope, dict) else None
    return source if isinstance(source, dict) else {}


def _instant(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)
