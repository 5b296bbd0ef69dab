"""The idle trigger: Spark polls rarely, because each poll costs a plan; the driver takes what comes meanwhile."""

from __future__ import annotations

import time


class IdleTrigger:
    """A source whose query is idle while the driver can read all that comes, and is rebuilt when it cannot."""

    rest_after_seconds = 30.0
    """The query becomes idle this long after the last input that was too much for the driver. To rebuild it costs as
    much as looking often for that long."""
    seldom_seconds = 1_800.0
    """How often Spark looks meanwhile: long before the log of what the driver has taken is cleaned up."""
    _many_at: float | None = None
    _is_idle = False

    def _leave_to_spark(self) -> None:
        """What there is now is more than the driver reads: the query is not to be idle for a while."""
        self._many_at = time.monotonic()

    def _may_idle(self) -> bool:
        return self._many_at is None or time.monotonic() - self._many_at >= self.rest_after_seconds
