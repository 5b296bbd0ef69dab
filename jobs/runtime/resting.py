"""A query that rests: Spark looks seldom, because a look costs it a plan, and the driver takes what comes meanwhile."""

from __future__ import annotations

import time


class Resting:
    """A source whose query rests while the driver can read all that comes, and is built anew when it cannot."""

    rest_after_seconds = 30.0
    """So long after the last that was too much the query rests. To build it anew costs as much as looking often for
    that long."""
    seldom_seconds = 1_800.0
    """How often Spark looks meanwhile: long before the log of what the driver has taken is cleaned up."""
    _many_at: float | None = None
    _rests = False

    def _leave_to_spark(self) -> None:
        """What there is now is more than the driver reads: the query is not to rest for a while."""
        self._many_at = time.monotonic()

    def _may_rest(self) -> bool:
        return self._many_at is None or time.monotonic() - self._many_at >= self.rest_after_seconds
