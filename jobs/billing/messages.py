"""What whoever follows gets: windows and corrections as CloudEvents 1.0, in structured JSON.

`data` has a stable `id`, a `version` that only grows, and the row: amounts and quantities are texts with every digit,
instants are RFC 3339 in UTC. One `id` at one `version` is always the same row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from metering.instants import rfc3339
from metering.words import Published

SOURCE = "weir"
TYPES = {Published.WINDOWS: "weir.window.v1", Published.CORRECTIONS: "weir.correction.v1"}
WINDOW_ID = ("window_start", "account", "model", "meter", "currency", "price_version")
CORRECTION_ID = ("usage_lsn", "meter")
ONLY_VERSION = 1
"""Of a correction: what was made is never changed."""

Message = tuple[bytes, bytes]
"""Key and value of a record."""


def window_message(row: Mapping[str, Any]) -> Message:
    """A row of `usage_windows`. Its key is its id, a JSON array (`WINDOW_ID`): so the topic is a table."""
    identity = _json([_plain(row[name]) for name in WINDOW_ID])
    said = {name: value for name, value in row.items() if name not in ("version", "updated_at")}
    event = _event(Published.WINDOWS, identity, row["version"], row["updated_at"], said)
    return identity.encode(), event.encode()


def correction_message(row: Mapping[str, Any]) -> Message:
    """A row of `corrections`. Its key is the account: those of one account keep their order. Id: `CORRECTION_ID`."""
    identity = _json([row["usage_lsns"][0], row["meter"]])
    said = {name: value for name, value in row.items() if name != "number"}
    event = _event(Published.CORRECTIONS, identity, ONLY_VERSION, row["corrected_at"], said)
    return row["account"].encode(), event.encode()


def _event(topic: Published, identity: str, version: int, at: datetime, row: Mapping[str, Any]) -> str:
    return _json(
        {
            "specversion": "1.0",
            "type": TYPES[topic],
            "source": SOURCE,
            # Of this message: what comes again has it again.
            "id": f"{identity}@{version}",
            "subject": row["account"],
            "time": rfc3339(at),
            "datacontenttype": "application/json",
            "data": {
                "id": identity,
                "version": version,
                **{name: _plain(value) for name, value in row.items()},
            },
        }
    )


def _plain(value: Any) -> Any:
    return rfc3339(value) if isinstance(value, datetime) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
