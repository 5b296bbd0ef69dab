"""Which quantities of an event contain others: declared by the contract of its type, or for a source.

OpenAI, Gemini and OpenTelemetry's conventions count cached tokens within the input tokens; Anthropic counts them
separately. Billing both meters requires knowing which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from metering.limits import PLAIN_NAME

INCLUDES = "x-weir-includes"
"""The annotation of a contract: for each quantity's column, the columns of its parts."""
COLUMN = "quantity_includes"
"""The journal's column with the convention of a row that has such a part above 0 (`text_of`)."""
MAX_INCLUDED = 50
_NAME = re.compile(PLAIN_NAME)

Includes = tuple[tuple[str, tuple[str, ...]], ...]
"""(Column of the whole, columns of its parts), in the order of names."""


def includes_of(given: Any) -> Includes:
    """`{whole: [part, …]}` as Includes. Raises ValueError.

    A part has one whole, so that no unit is subtracted twice; a whole may be part of another.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{INCLUDES} is an object: a column, and the list of the columns within it; it is {given!r}")
    wholes: dict[str, str] = {}
    for whole, parts in given.items():
        if not isinstance(parts, list | tuple):
            raise ValueError(f"{INCLUDES}.{whole} is a list of columns; it is {parts!r}")
        for part in parts:
            if part in wholes:
                raise ValueError(f"{INCLUDES} has {part} in {wholes[part]} and in {whole}; it can be part of one")
            wholes[part] = whole
    for name in (*given, *wholes):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{INCLUDES} names columns: a-z, 0-9 and _, at most 63; it has {name!r}")
    if len(wholes) > MAX_INCLUDED:
        raise ValueError(f"{INCLUDES} has {len(wholes)} parts; at most {MAX_INCLUDED}")
    for part in wholes:
        if part in _above(part, wholes):
            raise ValueError(f"{INCLUDES} has {part} within itself")
    return tuple(sorted((whole, tuple(sorted(parts))) for whole, parts in given.items() if parts))


def text_of(includes: Includes) -> str:
    """As JSON, the same text for the same meaning."""
    return json.dumps({whole: list(parts) for whole, parts in includes}, separators=(",", ":"))


def without_includes(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Contracts' documents without their conventions."""
    return {
        name: {key: value for key, value in document.items() if key != INCLUDES} for name, document in documents.items()
    }


def wholes_of(text: str, column: str) -> tuple[str, ...]:
    """From the text of `text_of`: the columns that contain a column, innermost first."""
    return tuple(_above(column, {part: whole for whole, parts in json.loads(text).items() for part in parts}))


def _above(name: str, wholes: Mapping[str, str]) -> Iterator[str]:
    for _ in wholes:
        if name not in wholes:
            return
        name = wholes[name]
        yield name
