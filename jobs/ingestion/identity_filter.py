"""Which identities are certainly not among many: a Bloom filter that can be halved when memory is short.

An identity has a few bits in each of a few words of 64: who is looked up costs one place in memory, as most strangers
fail at the first (a blocked Bloom filter; Putze, Sanders, Singler, 2007). What is looked up is made ready once
(`Probes`) for as many filters as there are. Identities are cut from SHA-256, so their bits are as good as any hash of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

WORD_BITS = 64
BITS_IN_WORD = 3
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd, one for each word of an identity: from the upper bits of the product come its bits in that word."""
BITS_PER_IDENTITY = 64
"""At least; twice that at most. Of ten million strangers two at most pass: each costs a part of the journal."""
MIN_BITS = 1_024


@dataclass(frozen=True)
class Probes:
    """Identities (16 bytes, as two halves) as filters look them up."""

    high: Words
    low: Words

    def __len__(self) -> int:
        return len(self.high)

    @cached_property
    def words(self) -> list[tuple[Words, Words]]:
        """For each word: where it is, and which of its bits."""
        places = (self.high, self.high >> np.uint64(32), self.low >> np.uint64(32))
        mixed = self.high ^ self.low
        return [(place, _bits(mixed * np.uint64(by))) for place, by in zip(places, MULTIPLIERS, strict=True)]

    def at(self, rows: NDArray[np.intp]) -> Probes:
        """Those in these rows, which follow each other."""
        if len(rows) == len(self):
            return self
        found = Probes(self.high[rows], self.low[rows])
        if "words" in self.__dict__:
            found.__dict__["words"] = [(place[rows], bits[rows]) for place, bits in self.words]
        return found


class IdentityFilter:
    """A fixed set of identities: "certainly not in it", or "perhaps"."""

    def __init__(self, members: Probes) -> None:
        bits = max(MIN_BITS, 1 << (max(1, len(members) * BITS_PER_IDENTITY) - 1).bit_length())
        self._words: Words = np.zeros(bits // WORD_BITS, dtype=np.uint64)
        for place, marked in members.words:
            np.bitwise_or.at(self._words, place & self._last, marked)

    @property
    def _last(self) -> np.uint64:
        # Sizes are powers of two and a place keeps its low bits in every size: that is why halving is an OR.
        return np.uint64(len(self._words) - 1)

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return self._words.nbytes

    def may_hold(self, probes: Probes) -> NDArray[np.bool_]:
        """For each identity whether it may be in the set; of those in it always true."""
        (place, bits), *others = probes.words
        kept = np.flatnonzero(self._are_set(place, bits))
        for place, bits in others:
            kept = kept[self._are_set(place[kept], bits[kept])]
        found = np.zeros(len(probes), dtype=np.bool_)
        found[kept] = True
        return found

    def _are_set(self, place: Words, bits: Words) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self._words[place & self._last] & bits) == bits
        return found

    def halve(self) -> None:
        """Take half the memory; more strangers pass, and no member is lost."""
        if len(self._words) * WORD_BITS > MIN_BITS:
            middle = len(self._words) // 2
            self._words = self._words[:middle] | self._words[middle:]


def _bits(hashed: Words) -> Words:
    """BITS_IN_WORD of a word, by the upper bits of a hash; some may be the same."""
    found = np.zeros(len(hashed), dtype=np.uint64)
    for number in range(1, BITS_IN_WORD + 1):
        found |= np.uint64(1) << ((hashed >> np.uint64(WORD_BITS - 6 * number)) & np.uint64(WORD_BITS - 1))
    return found
