"""By how much numbers rose, whichever process showed them.

Gauges from the database live longer than the process that shows them: their rise is taken over all instances, and never
with `increase`, which would not see one that happened between two processes. Counters die with their process.
"""

from __future__ import annotations


def risen(series: str, labels: str, window: str) -> str:
    """By how much a gauge is above its lowest value in `window`, whichever process showed it."""
    return f"max by ({labels}) ({series}) - min by ({labels}) (min_over_time({series}[{window}]))"


def counted(counter: str, minutes: int, labels: str = "") -> str:
    """Where a counter rose within so many minutes, and by how much; all of a process that began meanwhile.

    `increase` does not see what a process counts before its first scrape. After an outage a driver reads in its first
    batch what has waited, and the series of another pod begin with it.
    """
    total = f"sum by ({labels}) " if labels else "sum"
    of_new = f"{counter} and on (instance) time() - process_start_time_seconds < {minutes * 60}"
    return f"{total}(increase({counter}[{minutes}m])) > 0 or {total}({of_new}) > 0"
