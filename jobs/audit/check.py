"""The result of checking one promise of docs/design.md, section 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """How much was looked at, what is not as it must be, how much of that was expected, and the first of it in words.

    `corrected`: what was corrected now. A difference is expected that has one of the audit's known causes.
    """

    check: str
    examined: int
    found: int
    says: str
    expected: int = 0
    corrected: int = 0

    @property
    def holds(self) -> bool:
        """Whether every difference has a known cause."""
        return self.found == self.expected


def first_sentence(check: str, examined: int, broken: Sequence[str], sound: str) -> Check:
    """The first sentence about a fault, or `sound`."""
    return Check(check, examined, len(broken), broken[0] if broken else sound)
