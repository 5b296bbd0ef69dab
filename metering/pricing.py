"""What prices of usage are named by: versions of the catalog, and the numbers in place of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

Value = TypeVar("Value")

BILLED_AS_PART, BILLED_IN_WHOLE = 0, -1
"""In place of a price's version, with a unit price of 0: units that another meter bills. One within this meter bills
them, as it has a price of its own; or this meter has none, and the one that it is within bills them."""
ASSUMED_VERSIONS_FROM = 2**62
"""Versions of assumed prices (`weir what-if`) are counted from here: no catalog has so many, 0 and -1 are taken."""


@dataclass(frozen=True)
class Version(Generic[Value]):
    """A change of one account or price. `value` None: deleted.

    `ends_at`: when a deleted price ends; None: it is withdrawn, as deletions were before they had an end.
    """

    lsn: int
    effective_from: datetime
    value: Value | None
    ends_at: datetime | None = None
