"""A limit on the total memory of the bodies of unanswered requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api.problems import BYTES, over_capacity
from monitoring import metrics
from monitoring.metrics import Refusal

MAX_BODIES_BYTES = 64 << 20
"""Of unpacked bodies whose requests are not answered yet. Validating one takes several times its size."""
RETRY_AFTER_SECONDS = 2


class BodyBudget:
    """Counts the bytes of all unanswered requests. For the event loop's thread alone."""

    def __init__(self, max_bytes: int = MAX_BODIES_BYTES) -> None:
        self.used_bytes = 0
        self._max_bytes = max_bytes
        metrics.API_BODY_BYTES.set(0)

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """A call that reserves further bytes for a request, until the block ends. It raises Problem (429)."""
        own = 0

        def reserve(size_bytes: int) -> None:
            nonlocal own
            if self.used_bytes + size_bytes > self._max_bytes:
                raise over_capacity(
                    Refusal.BODIES,
                    "More comes in than this server can hold: send the same request again later.",
                    RETRY_AFTER_SECONDS,
                    self._max_bytes,
                    BYTES,
                )
            own += size_bytes
            self._add(size_bytes)

        try:
            yield reserve
        finally:
            self._add(-own)

    def _add(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        metrics.API_BODY_BYTES.set(self.used_bytes)
