"""Events → bytes, each complete before it is stored: what is sent again is the same to the last byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

NEEDED = ("source", "type", "subject")


def encoded(events: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """CloudEvents with `id`, `time` and `specversion`, where they lack one. Raises ValueError and TypeError."""
    return [_encoded(event) for event in events]


def _encoded(event: Mapping[str, Any]) -> bytes:
    if missing := [name for name in NEEDED if not event.get(name)]:
        raise ValueError(f"the event lacks {', '.join(missing)}")
    whole = {"specversion": "1.0", "id": uuid4().hex, "time": rfc3339(datetime.now(UTC)), **event}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def rfc3339(instant: datetime) -> str:
    """In UTC; one without a zone is of this machine's."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
