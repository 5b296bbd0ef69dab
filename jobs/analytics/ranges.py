"""Ranges of numbers and minutes as conditions in SQL, few enough to plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from metering.windows import MINUTE

Range = tuple[int, int]
"""[first, end)."""
MAX_RANGES = 64
"""Beyond this many they are read as one: a long condition costs more than rows that are read for nothing."""


def merged_blocks(blocks: Iterable[int], size: int) -> Sequence[Range]:
    """Numbers of blocks of `size` → what they cover, in order."""
    found: list[Range] = []
    for block in sorted(blocks):
        first, end = block * size, (block + 1) * size
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found if len(found) <= MAX_RANGES else [(found[0][0], found[-1][1])]


def within(column: str, ranges: Sequence[Range]) -> str:
    """Whether a column is in one of the ranges; of none: never."""
    return " OR ".join(f"({column} >= {first} AND {column} < {end})" for first, end in ranges) or "false"


def within_minutes(column: str, minutes: Iterable[datetime]) -> str:
    """Whether an instant is in one of these minutes, or, where they are many, between the first and the last."""
    size = MINUTE.seconds
    ranges = merged_blocks({int(minute.timestamp()) // size for minute in minutes}, size)
    return (
        " OR ".join(
            f"({column} >= timestamp_seconds({first}) AND {column} < timestamp_seconds({end}))" for first, end in ranges
        )
        or "false"
    )
