"""People's decisions about stragglers → rows of usage that bill nothing; billing reads them in lsn order."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.joins.catalog import version
from jobs.streams import USAGE, CatalogTopic
from metering.vocabulary import UsageCause


def decisions(changes: pl.DataFrame, frontier: datetime | None) -> pa.Table:
    """Accepted changes of the catalog (lsn, topic, value, received_at) → rows of USAGE, one per decision, by lsn.

    `frontier` is the F that usage had before these: who has read as far may have ended what waited until then, so none
    was received before it. That a decision is deleted takes nothing back: it was made.
    """
    accepted = changes.filter(pl.col("topic") == CatalogTopic.DECISIONS.value).sort("lsn")
    read = ((version(*row[:3]), row[3]) for row in accepted.select("topic", "value", "lsn", "received_at").rows())
    rows = [
        _row(decision, received_at, frontier)
        for decision, received_at in read
        if decision is not None and not decision["deleted"]
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([USAGE.field(name) for name in _NAMES]))


def with_decisions(outcomes: pa.Table, decided: pa.Table) -> pa.Table:
    """Priced outcomes and, behind them, what was `decided`; what a decision does not say is null."""
    if not len(decided):
        return outcomes
    alike = decided.cast(pa.schema([outcomes.schema.field(name).with_nullable(True) for name in _NAMES]))
    return pa.concat_tables([outcomes, alike], promote_options="default")


def _row(decision: dict[str, Any], received_at: datetime, frontier: datetime | None) -> dict[str, Any]:
    at = received_at if frontier is None else max(received_at, frontier)
    texts = {name: decision[name] for name in ("decision", "decided_by", "reason")}
    return {
        "account": decision["account"],
        "request_id": decision["request_id"],
        "outcome": UsageCause.DECIDED.value,
        "request_lsn": decision["lsn"],
        "event_time": at,
        "received_at": at,
        "sign": 1,
        "cause": UsageCause.DECIDED.value,
        "corrects_lsns": [decision["usage_lsn"]],
        "meters": [{"meter": decision["meter"]}],
        "dimensions": json.dumps(texts, sort_keys=True, ensure_ascii=False),
    }


_NAMES = (
    *("account", "request_id", "outcome", "request_lsn", "event_time", "received_at", "sign", "cause", "corrects_lsns"),
    *("meters", "dimensions"),
)
