"""When a job will have committed all its input: the backlog, divided by its speed less the rate of arrival."""

from __future__ import annotations

from collections import deque

HORIZON_SECONDS = 120.0
"""How far back speed and arrivals are measured."""


class CatchUp:
    """Keeps what the last minutes showed. Times are monotonic seconds. Batches and reports may be of two threads.

    A job commits in bursts, so its speed is records per second of work, not per second: a job that idles between its
    batches is not behind for ever because a few records always wait.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[float, int, float]] = deque()
        self._looks: deque[tuple[float, int, int]] = deque()
        self._committed = 0

    def batch(self, at: float, records: int, seconds: float) -> None:
        """A batch of `records` took `seconds`."""
        self._committed += records
        self._batches.append((at, records, seconds))

    def seconds(self, at: float, behind: int) -> float | None:
        """Estimate with `behind` records waiting at `at`: 0 without any, infinity when it falls behind or is stalled.

        None as long as there is nothing to measure.
        """
        self._looks.append((at, self._committed + behind, behind))
        for kept in (self._batches, self._looks):
            while kept and kept[0][0] < at - HORIZON_SECONDS:
                kept.popleft()
        if behind == 0:
            return 0.0
        (first_at, first_total, _), (_, total, _) = self._looks[0], self._looks[-1]
        # A copy at once, because a batch that ends meanwhile adds to it.
        batches = tuple(self._batches)
        if not batches:
            return float("inf") if at - first_at > HORIZON_SECONDS / 2 else None
        worked_seconds = sum(seconds for _, _, seconds in batches)
        speed = sum(records for _, records, _ in batches) / max(worked_seconds, 1e-3)
        arriving = (total - first_total) / (at - first_at) if at > first_at else 0.0
        if speed > arriving:
            return behind / (speed - arriving)
        return float("inf") if self._grows() else behind / speed

    def _grows(self) -> bool:
        """Whether the backlog never became as small again as it was.

        A few records in a batch cost as much as thousands, so a job that is almost idle seems slow; but it keeps up.
        """
        waiting = [behind for _, _, behind in self._looks]
        half = len(waiting) // 2
        return half == 0 or min(waiting[half:]) > min(waiting[:half])
