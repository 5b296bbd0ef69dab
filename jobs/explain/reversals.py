"""The reversals among some records: what each takes back, and whether an audit has applied it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from jobs.explain.records import Tables
from jobs.journal.families import is_reversal
from metering.contracts.reversals import METER, QUANTITY, REASON
from metering.csv_lines import text_of
from metering.vocabulary import UsageCause

_COLUMNS = ("lsn", "account", "request_id", "id", "source", "received_at", "logged_at", "type", "family", "disposition")
_SHOWN = ("account", "request_id", "lsn", "id", "source", "received_at")
Row = Mapping[str, Any]


def reversals_of(tables: Tables, usage: pl.DataFrame, records: pl.DataFrame) -> list[dict[str, Any]]:
    """Records (RECORD) and the usage of their requests (USAGE) → the reversals among the records, by lsn.

    Each has `account, request_id, lsn, id, source, received_at`, its `reason`, `meter` and `quantity` (null: all), and
    an `explanation`.
    """
    fields = (REASON, METER, QUANTITY)
    stored = tables.journal.with_columns(fields)
    if records.is_empty() or not set(fields) <= set(stored.schema):
        return []
    rows = stored.by_lsn(records["lsn"], (*_COLUMNS, *fields))
    rows = rows.filter(is_reversal())
    if rows.is_empty():
        return []
    taken = usage.filter(pl.col("cause") == UsageCause.REVERSED.value)
    taken = tables.usage.by_lsn(taken["lsn"], ("lsn", "account", "request_id", "logged_at"))
    return [
        {
            **{name: row[name] for name in _SHOWN},
            "reason": row[REASON],
            "meter": row[METER],
            "quantity": row[QUANTITY],
            "explanation": _explanation(row, taken),
        }
        for row in rows.iter_rows(named=True)
    ]


def _explanation(row: Row, taken: pl.DataFrame) -> str:
    """What it takes back, and what came of it; `taken` (lsn, account, request_id, logged_at): what audits took back."""
    quantity, meter = row[QUANTITY], row[METER]
    what = "all" if meter is None else f"all {meter}" if quantity is None else f"{text_of(quantity)} {meter}"
    sentence = f"event {row['id']} takes back {what} that request {row['request_id']} bills: {row[REASON]}"
    of_request = (pl.col("account") == row["account"]) & (pl.col("request_id") == row["request_id"])
    since = taken.filter(of_request & (pl.col("logged_at") >= row["logged_at"]))["lsn"].sort().to_list()
    if since:
        return f"{sentence}; an audit has done so by usage {', '.join(map(str, since))}"
    return f"{sentence}; the next audit does so, if the request bills anything and is within reach"
