"""A change of the catalog, and the record that Debezium would publish for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs.streams import CatalogTopic
from metering.instants import EPOCH

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """A row of the catalog as it is now. `op` as in Debezium: c created, u updated, r read (unchanged).

    d: deleted, with the row as it was. None of our commands deletes this way; generated traffic does.
    """

    topic: CatalogTopic
    key: Row
    after: Row
    op: str
    committed_at: datetime


def envelope(change: Change) -> dict[str, Any]:
    """The value of a change event: Debezium's envelope without schemas, under the default replica identity."""
    at_ms = (change.committed_at - EPOCH) // timedelta(milliseconds=1)
    schema, table = change.topic.value.split(".")
    source = {"connector": "postgresql", "name": "weir", "ts_ms": at_ms, "schema": schema, "table": table}
    before, after = (dict(change.key), None) if change.op == "d" else (None, dict(change.after))
    return {"before": before, "after": after, "source": source, "op": change.op, "ts_ms": at_ms}


def compact_json(value: Any) -> str:
    """JSON as written in a record: one text for one value, its fields in their own order."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, separators=(",", ":"), ensure_ascii=False)
