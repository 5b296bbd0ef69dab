"""How much passes through a driver at once, so that it fits the memory which a driver has."""

from __future__ import annotations

from metering.meters import MAX_METERS

BATCH_QUANTITIES = 400_000
"""Of outcomes: what a driver holds of them with 512 MiB of Java heap and 768 beside it. With the four default meters
100,000 rows have them."""
BATCH_VALUES = 250_000
"""Of rows of the journal and what meters sum up of them: what 100,000 say with the four default meters, every second of
them with all. Rows that could have more meters than they have are not cut finer."""
BATCH_CELLS = 2_000_000
"""Of rows of the journal in the columns of all meters, empty or not: 32 MB for each copy that is made."""

LOOKED_UP_ROWS = 100_000
"""Of a batch whose rows the driver looks up in another table itself: a full batch of joins is half as many."""


def outcomes_at_once(meters: int) -> int:
    """Most outcomes that pass a driver at once, if each has a quantity of so many meters."""
    return BATCH_QUANTITIES // min(meters, MAX_METERS)
