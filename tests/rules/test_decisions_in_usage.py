"""What people decided, as rows of usage: each once, in order, received when its record was but never before F."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa

from catalog.change import Change, compact_json, envelope
from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.joins.decisions import decisions, with_decisions
from jobs.joins.memory import Memory, Schema, carried
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.joins.usage_rows import usage_rows
from jobs.streams import ACCOUNTS, PRICES, USAGE, CatalogTopic
from jobs.usage_entries import metered

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def record(lsn: int, usage_lsn: int, decision: str = "approve", op: str = "c") -> dict[str, Any]:
    key = {"usage_lsn": usage_lsn, "meter": "requests"}
    said = {"decision": decision, "reason": "it is é", "decided_by": "ann"}
    change = Change(CatalogTopic.DECISIONS, key, {**key, "account": "a", "request_id": "r", **said}, op, NOW)
    value = compact_json(envelope(change)).encode()
    return {"lsn": lsn, "topic": "catalog.decisions", "value": value, "received_at": NOW + lsn * SECOND}


def changes(*rows: dict[str, Any]) -> pl.DataFrame:
    kinds: Schema = {"lsn": pl.Int64, "topic": pl.String, "value": pl.Binary, "received_at": pl.Datetime("us", "UTC")}
    return pl.DataFrame(list(rows), schema=kinds)


def test_each_decision_is_a_row_that_bills_nothing_in_the_order_of_the_journal() -> None:
    price_of_another = {**record(4, 9), "topic": "catalog.prices"}
    rows = decisions(changes(record(5, 7, "reject"), price_of_another, record(3, 6)), None).to_pylist()
    assert [(row["request_lsn"], row["corrects_lsns"], row["received_at"]) for row in rows] == [
        (3, [6], NOW + 3 * SECOND),
        (5, [7], NOW + 5 * SECOND),
    ]
    said = {"decision": "approve", "reason": "it is é", "decided_by": "ann"}
    assert [json.loads(row["dimensions"]) for row in rows] == [said, {**said, "decision": "reject"}]
    assert {(row["cause"], row["outcome"], row["sign"], row["account"], row["request_id"]) for row in rows} == {
        ("decided", "decided", 1, "a", "r")
    }
    assert [[entry["quantity"] for entry in row["meters"]] for row in rows] == [[None], [None]]


def test_none_was_received_before_the_f_that_usage_had() -> None:
    """Who has read as far may have ended the waiting by then."""
    rows = decisions(changes(record(3, 6), record(5, 7)), NOW + 4 * SECOND).to_pylist()
    assert [row["received_at"] - NOW for row in rows] == [4 * SECOND, 5 * SECOND]


def test_deleted_decisions_and_tombstones_are_ignored() -> None:
    tombstone = {**record(4, 6), "value": None}
    assert len(decisions(changes(record(3, 6, op="d"), tombstone), None)) == 0


def test_they_follow_the_outcomes_of_their_batch_in_usage() -> None:
    nothing = resolve(Memory.empty(carried((), ())).rows, None)
    priced = price(nothing, (), account_versions(ACCOUNTS.empty_table()), price_versions(PRICES.empty_table()))
    priced = priced.append_column("day", pa.nulls(0, pa.date32()))
    decided = decisions(changes(record(3, 6)), None)
    rows = usage_rows(with_decisions(priced, decided), 8, NOW, None)
    assert rows.schema == USAGE
    assert [(row["lsn"], row["cause"]) for row in rows.to_pylist()] == [(8, "decided")]
    assert with_decisions(priced, decided.slice(0, 0)) is priced
    [entry] = metered(pl.DataFrame(rows).lazy()).collect().iter_rows(named=True)
    assert (entry["meter"], entry["quantity"]) == ("requests", None)
