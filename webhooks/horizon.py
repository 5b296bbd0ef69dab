"""Up to which event nothing can come between any more.

Numbers are given when an event is written, and transactions commit in another order. So a number that is missing may be
rolled back, or may appear in a moment. It can appear only while the transaction that took it is open.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class Horizon:
    """Follows the writers of the outbox: those that were open when a number was the newest, until all have ended."""

    def __init__(self) -> None:
        self._settled = 0
        self._newest = 0
        self._open: AbstractSet[str] = frozenset()

    def settled(self, newest: int, writers: AbstractSet[str]) -> int:
        """The number up to which every event is committed or rolled back.

        `newest` is the highest number given, read before `writers`, the transactions that write the outbox. A
        transaction that took a number up to `newest` is among them, or has ended.
        """
        if not self._open & writers:
            self._settled = newest if not writers else max(self._settled, self._newest)
            self._newest, self._open = newest, writers
        return self._settled
