"""Messages to subscribers: windows and corrections as CloudEvents 1.0, in structured JSON.

`data` has a stable `id`, a `version` that only grows, and the row: amounts and quantities are texts with every digit,
instants are RFC 3339 in UTC. One `id` at one `version` is always the same row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from metering.instants import rfc3339
from metering.vocabulary import Published

SOURCE = "weir"
TYPES = {Published.WINDOWS: "weir.window.v1", Published.CORRECTIONS: "weir.correction.v1"}
WINDOW_ID = ("window_start", "account", "model", "meter", "currency", "price_version")
ONLY_VERSION = 1
"""Of a correction: what was made is never changed."""

Message = tuple[bytes, bytes]
"""Key and value of a record."""

# Thousands of windows begin and end at the same few minutes.
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=lru_cache(1_000)(rfc3339)).encode


# An open window is sent again and again.
@lru_cache(20_000)
def _identity(*parts: object) -> str:
    return _json(parts)


def window_message(row: Mapping[str, Any]) -> Message:
    """A row of `usage_windows`. Its key is its id, a JSON array (`WINDOW_ID`): so the topic is a table."""
    identity = _identity(*map(row.__getitem__, WINDOW_ID))
    data = {name: value for name, value in row.items() if name != "updated_at"}
    return identity.encode(), _event(Published.WINDOWS, row["updated_at"], {"id": identity, **data})


def correction_message(row: Mapping[str, Any]) -> Message:
    """A row of `corrections`. Its key is the account: those of one account keep their order. Its id: the
    first `usage_lsns` and the meter.

    Only corrections of whole periods have a `period`.
    """
    identity = _identity(row["usage_lsns"][0], row["meter"])
    values = {name: value for name, value in row.items() if name != "number" and (name, value) != ("period", None)}
    data = {"id": identity, "version": ONLY_VERSION, **values}
    return row["account"].encode(), _event(Published.CORRECTIONS, row["corrected_at"], data)


def _event(topic: Published, at: datetime, data: Mapping[str, Any]) -> bytes:
    event = {
        "specversion": "1.0",
        "type": TYPES[topic],
        "source": SOURCE,
        # Of this message: what comes again has it again.
        "id": f"{data['id']}@{data['version']}",
        "subject": data["account"],
        "time": at,
        "datacontenttype": "application/json",
        "data": data,
    }
    return _json(event).encode()
