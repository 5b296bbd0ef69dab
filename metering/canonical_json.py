"""Canonical JSON (RFC 8785 for texts, whole numbers, lists and objects with ASCII names) and its SHA-256.

Decimals are texts in plain notation without trailing zeros, instants are RFC 3339 in UTC: 1.50 and 1.5 are the same
number, so they have the same hash.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256

from metering.digits import plain
from metering.instants import rfc3339


def canonical_json(value: object) -> bytes:
    """The one way to write `value`. Raises TypeError for what has no exact form, a binary float among it."""
    return json.dumps(
        _checked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return sha256(canonical_json(value)).hexdigest()


def _checked(value: object) -> object:
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal():
            return plain(value)
        case datetime():
            return rfc3339(value)
        case date():
            return value.isoformat()
        case dict():
            if not all(isinstance(name, str) and name.isascii() for name in value):
                raise TypeError("the names of an object are ASCII texts: other orders of sorting would differ")
            return {name: _checked(item) for name, item in value.items()}
        case list() | tuple():
            return [_checked(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical form")
