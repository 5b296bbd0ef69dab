"""Which identities are certainly not among many: a Bloom filter that can be halved when memory is short.

The identities are cut from SHA-256, so their bits are as good as any hash of them.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Words = NDArray[np.uint64]

PROBES = 10
BITS_PER_IDENTITY = 32
"""At least; twice that at most. Of a million strangers two at most pass."""
MIN_BITS = 1_024


class IdentityFilter:
    """A fixed set of identities: "certainly not in it", or "perhaps"."""

    def __init__(self, high: pl.Series, low: pl.Series) -> None:
        size = max(MIN_BITS, 1 << (max(1, len(high) * BITS_PER_IDENTITY) - 1).bit_length())
        marked = np.zeros(size, dtype=np.bool_)
        for number in range(PROBES):
            marked[_place(high.to_numpy(), low.to_numpy(), number) & np.uint64(size - 1)] = True
        self._bits: Bits = np.packbits(marked, bitorder="little")

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return self._bits.nbytes

    def may_hold(self, high: Words, low: Words) -> NDArray[np.bool_]:
        """For each identity whether it may be in the set; of those in it always true."""
        kept = np.arange(len(high))
        last = np.uint64(8 * len(self._bits) - 1)
        for number in range(PROBES):
            place = _place(high[kept], low[kept], number) & last
            byte, bit = self._bits[place >> np.uint64(3)], (place & np.uint64(7)).astype(np.uint8)
            kept = kept[(byte >> bit) & 1 == 1]
            if not len(kept):
                break
        found = np.zeros(len(high), dtype=np.bool_)
        found[kept] = True
        return found

    def halve(self) -> None:
        """Take half the memory; more strangers pass, and no member is lost."""
        if len(self._bits) * 8 > MIN_BITS:
            middle = len(self._bits) // 2
            self._bits = self._bits[:middle] | self._bits[middle:]


def _place(high: Words, low: Words, number: int) -> Words:
    # Sizes are powers of two and a place keeps its low bits in every size: that is why halving is an OR.
    return high + np.uint64(number) * (low | np.uint64(1))
