"""Gauges from the database live longer than the process that shows them: their rise is taken over all instances.

Never with `increase`, which would not see one that happened between two processes.
"""

from __future__ import annotations


def risen(series: str, labels: str, window: str) -> str:
    """By how much a gauge is above its lowest value in `window`, whichever process showed it."""
    return f"max by ({labels}) ({series}) - min by ({labels}) (min_over_time({series}[{window}]))"
