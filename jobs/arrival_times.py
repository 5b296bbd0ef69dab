"""When outcomes occurred, minute by minute, in little memory: of several panes the times between outcomes follow.

While a minute has at most MAX_TIMES different instants, they are kept to the microsecond. With more, its instants are
rounded down to the smallest power of two of microseconds of which so many remain. Both follow from the set of instants
alone: any order and cut of outcomes makes the same bytes, and no time between two is off by MAX_ERROR_MICROSECONDS or
more.
"""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metering.windows import MINUTE

MICROSECONDS = MINUTE.seconds * 1_000_000
"""Of a minute."""
MAX_TIMES = 1_024
"""Different instants of a minute that are kept."""
MAX_ERROR_MICROSECONDS = 1 << 16
"""Of these a minute has fewer than MAX_TIMES."""
Ints = NDArray[np.int64]
Short = NDArray[np.int32]
"""What a minute has: a reader may have the minutes of weeks in memory."""
_HEADER = struct.Struct("<iBBBH")
"""Of a minute: its number since the epoch, by how many bits instants are shortened, how many bytes a distance between
two and a count have (0: each is 1), and how many instants there are."""
_WIDTHS: Mapping[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


class ArrivalTimes:
    """The instants of outcomes, to which more are added."""

    __slots__ = ("_minutes",)

    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = {}

    def add(self, part: str | Sequence[int] | Ints) -> None:
        """Add what another one has stored, or microseconds since the epoch."""
        if isinstance(part, str):
            for number, minute in _read(a2b_base64(part)):
                self._add(number, minute)
            return
        instants = np.asarray(part, dtype=np.int64)
        numbers = instants // MICROSECONDS
        for number in np.unique(numbers).tolist():
            cells = (instants[numbers == number] - number * MICROSECONDS).astype(np.int32)
            self._add(number, _Minute(0, cells, np.ones(len(cells), dtype=np.int32)).shortened())

    def _add(self, number: int, minute: _Minute) -> None:
        known = self._minutes.get(number)
        self._minutes[number] = minute if known is None else known.with_those_of(minute)

    def stored(self) -> str:
        """All of it as text."""
        listed = (self._minutes[number].written(number) for number in sorted(self._minutes))
        return b2a_base64(b"".join(listed), newline=False).decode()

    def percentiles_ms(self, ranks: Mapping[str, float]) -> dict[str, float] | None:
        """The time from an outcome to the next one, in milliseconds: of each rank the least that at least so many are
        not above. None where there are fewer than two outcomes.
        """
        count = sum(int(minute.counts.sum()) for minute in self._minutes.values())
        if count < 2:
            return None
        minutes = sorted(self._minutes.items())
        between = np.diff(np.concatenate([number * MICROSECONDS + minute.instants for number, minute in minutes]))
        between.sort()
        at_once = count - 1 - len(between)
        places = {name: math.ceil(Fraction(str(rank)) * (count - 1)) - at_once for name, rank in ranks.items()}
        return {name: float(between[place - 1]) / 1_000 if place > 0 else 0.0 for name, place in places.items()}


class _Minute:
    """The instants of a minute, shortened by some bits, in order, and how many outcomes each has."""

    __slots__ = ("bits", "cells", "counts")

    def __init__(self, bits: int, cells: Short, counts: Short) -> None:
        self.bits, self.cells, self.counts = bits, cells, counts

    @property
    def instants(self) -> Ints:
        """Microseconds since the minute began."""
        return self.cells.astype(np.int64) << self.bits

    def with_those_of(self, other: _Minute) -> _Minute:
        """Both together."""
        bits = max(self.bits, other.bits)
        cells = np.concatenate((self.cells >> (bits - self.bits), other.cells >> (bits - other.bits)))
        return _Minute(bits, cells, np.concatenate((self.counts, other.counts))).shortened()

    def shortened(self) -> _Minute:
        """The same in order, with each instant once and at most MAX_TIMES of them."""
        order = np.argsort(self.cells, kind="stable")
        bits, cells, counts = self.bits, self.cells[order], self.counts[order]
        while True:
            firsts = np.flatnonzero(np.diff(cells, prepend=-1))
            cells, counts = cells[firsts], np.add.reduceat(counts, firsts, dtype=np.int32)
            if len(cells) <= MAX_TIMES:
                return _Minute(bits, cells, counts)
            bits, cells = bits + 1, cells >> 1

    def written(self, number: int) -> bytes:
        distances = np.diff(self.cells, prepend=0)
        of_distances = _width(int(distances.max()))
        of_counts = _width(most) if (most := int(self.counts.max())) > 1 else 0
        header = _HEADER.pack(number, self.bits, of_distances, of_counts, len(self.cells))
        counts = self.counts.astype(_WIDTHS[of_counts]).tobytes() if of_counts else b""
        return header + distances.astype(_WIDTHS[of_distances]).tobytes() + counts


def _width(most: int) -> int:
    return next(width for width in _WIDTHS if most < 1 << (8 * width))


def _read(stored: bytes) -> Iterator[tuple[int, _Minute]]:
    at = 0
    while at < len(stored):
        number, bits, of_distances, of_counts, count = _HEADER.unpack_from(stored, at)
        at += _HEADER.size
        cells = np.cumsum(_numbers(stored, at, of_distances, count), dtype=np.int32)
        at += of_distances * count
        counts = _numbers(stored, at, of_counts, count) if of_counts else np.ones(count, dtype=np.int32)
        at += of_counts * count
        yield number, _Minute(bits, cells, counts)


def _numbers(stored: bytes, at: int, width: int, count: int) -> Short:
    return np.frombuffer(stored, _WIDTHS[width], count, at).astype(np.int32)
