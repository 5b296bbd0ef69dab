"""What a contract allows for a field, in words: for violations, `weir contracts list` and the reference page."""

from __future__ import annotations

from decimal import Decimal

from metering.contracts.model import Field, Kind

HOLDS = {
    Kind.TEXT: "string",
    Kind.INTEGER: "integer",
    Kind.DECIMAL: "number below 10^11 with six decimals",
    Kind.DOUBLE: "number (double)",
    Kind.BOOLEAN: "boolean",
}
"""A kind in JSON Schema's words, and what Weir adds to them."""


def holds(field: Field) -> str:
    """What a field holds: `integer`, `integer, or a string of one`."""
    return f"{HOLDS[field.kind]}, or a string of one" if field.takes_text else HOLDS[field.kind]


def rule_of(field: Field) -> str:
    """What the field allows: `one of completed, error`, `at most 512 bytes`, `0 to 10000000000`; empty: anything."""
    if field.values is not None:
        return f"one of {', '.join(field.values)}"
    if field.max_bytes is not None:
        return f"at most {field.max_bytes} bytes"
    lowest, highest = _plain(field.minimum), _plain(field.maximum)
    if lowest and highest:
        return f"{lowest} to {highest}"
    return f"at least {lowest}" if lowest else f"at most {highest}" if highest else ""


def _plain(bound: Decimal | None) -> str:
    return "" if bound is None else f"{bound:f}"
