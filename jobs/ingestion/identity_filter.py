"""Which identities are certainly not among many: a Bloom filter that can be halved when memory is short.

An identity has a few bits in each of a few words of 64: who is looked up costs one place in memory, as most strangers
fail at the first (a blocked Bloom filter; Putze, Sanders, Singler, 2007). What is looked up is made ready once
(`Probes`) for as many filters as there are. Identities are cut from SHA-256, so their bits are as good as any hash of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Identities as filters look them up: for each word where it is, and which of its bits."""

    words: Sequence[tuple[Words, Words]]

    @classmethod
    def of(cls, high: Words, low: Words) -> Probes:
        """Those of identities (16 bytes, as two halves)."""
        places = (high, high >> np.uint64(32), low >> np.uint64(32))
        mixed = high ^ low
        return cls([(place, _bits(mixed * np.uint64(by))) for place, by in zip(places, MULTIPLIERS, strict=True)])

    def __len__(self) -> int:
        return len(self.words[0][0])

    def at(self, rows: NDArray[np.intp]) -> Probes:
        """Those in these rows (in order, each once)."""
        return self if len(rows) == len(self) else Probes([(place[rows], bits[rows]) for place, bits in self.words])


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
