"""One event, several calls: a contract names an array in its events, and each element is metered as an event.

An element counts as if it had been sent by itself: its members are placed in `data`, beside those that surround the
array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from metering.contracts.model import Path, pointer
from metering.vocabulary import Family

UNNEST = "x-weir-unnest"
"""The annotation of a contract: a JSON pointer (RFC 6901) to the array, which is somewhere in `data`."""
COLUMN = "element"
"""The journal's column: the place of an element in its array, from 1 on; 0, or null, of an event that has none."""
MAX_ELEMENTS = 1_000
MAX_UNNESTED_BYTES = 4 << 20
"""A text that surrounds the array is in each element: a record of 1 MiB may become 1 GiB. It holds 4 KiB for each of
1,000 elements: their texts and numbers that the contract reads, with those around them."""
FAMILIES = (Family.REQUEST, Family.COMPLETION, Family.BOTH, Family.QUANTITY)
"""Families whose events can hold several; not heartbeats, which are no calls, and not reversals, which name theirs."""
MAX_LEVELS = 8


def array_of(given: Any, family: Family, fields: Iterable[Path]) -> Path:
    """The path of a pointer, in a contract with these fields. Raises ValueError."""
    if not isinstance(given, str) or re.search("[\x00\ud800-\udfff]|~(?![01])", given):
        raise ValueError(f"{UNNEST} is a JSON pointer, such as /data/calls; it is {given!r}")
    root, *names = (name.replace("~1", "/").replace("~0", "~") for name in given.split("/"))
    path = tuple(names)
    if root or path[:1] != ("data",) or not 2 <= len(path) <= MAX_LEVELS or not all(path):
        raise ValueError(f"{UNNEST} is the JSON pointer of an array in data, such as /data/calls; it is {given!r}")
    if family not in FAMILIES:
        raise ValueError(f"{UNNEST} is of the families {', '.join(FAMILIES)}; this contract is of {family}")
    for field in fields:
        if field[: len(path)] == path or path[: len(field)] == field:
            raise ValueError(
                f"{UNNEST} names the array {given}, so nothing describes {pointer(field)}: what an element holds is "
                "described as if it were in data itself"
            )
    return path


def element_text(array: Path, element: int) -> str:
    """Which element: its number, and its pointer, which counts from 0."""
    return f"element {element} ({pointer(array)}/{element - 1})"
