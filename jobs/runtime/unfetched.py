"""A record that Java's client does not deliver, though the brokers are there: then waiting mends nothing.

The same words come from a broker that is away, so only the third time at one place, and with an answer to other
questions, it counts as a failure: the next start looks at the records first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobs.runtime.obstacles import CANNOT_FETCH

LIMIT = 3


class Unfetched:
    """How often in a row a driver could not fetch what comes at its positions."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._times = 0

    def end_if_waiting_is_in_vain(
        self, error: BaseException, positions: Mapping[int, int], is_answered: Callable[[], bool]
    ) -> None:
        """Raises RuntimeError, which is no obstacle, when `error` was met `LIMIT` times while brokers answered."""
        if (found := CANNOT_FETCH.search(str(error))) is None:
            return
        if dict(positions) != self._positions:
            self._positions, self._times = dict(positions), 0
        if not is_answered():
            return
        self._times += 1
        if self._times >= LIMIT:
            raise RuntimeError(f"{found[0]}, {self._times} times while the brokers answered") from error
