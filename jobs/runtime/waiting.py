"""What cannot be done now is tried again by the same process: its row and a metric say for what it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import structlog

from jobs.runtime.errors import NotYet
from jobs.runtime.obstacles import obstacle_of
from metering.instants import Clock, rfc3339
from metering.words import Cause
from monitoring import metrics

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
"""What has come back is noticed within this."""

log = structlog.get_logger()


def pause_seconds(attempts: int) -> float:
    """How long to wait after so many failures in a row: 0.5, 1, 2, … up to `LONGEST_PAUSE_SECONDS`."""
    # The exponent is capped because a job may wait for weeks.
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10)) if attempts > 0 else 0.0


class Waiting:
    """Whether a job waits, for what, and since when. It ends when something was done, not when it is tried again.

    A batch may end it while somebody reports it, so each looks once.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self.obstacle: NotYet | None = None
        self.attempts = 0
        self._since: datetime | None = None
        self._show()

    def for_(self, obstacle: NotYet) -> None:
        """One more attempt has met `obstacle`."""
        if self.obstacle is None or self.obstacle.cause is not obstacle.cause:
            self._since = self._clock.now()
            log.warning("waiting", job=self._job, waiting_for=obstacle.cause.value, reason=str(obstacle))
        self.obstacle = obstacle
        self.attempts += 1
        self._show()

    def over(self) -> None:
        """Something was done: nothing is waited for."""
        obstacle, since = self.obstacle, self._since
        if obstacle is not None and since is not None:
            seconds = round((self._clock.now() - since).total_seconds(), 1)
            log.info("goes on", job=self._job, waited_for=obstacle.cause.value, waited_seconds=seconds)
            self.obstacle, self._since, self.attempts = None, None, 0
            self._show()

    def progress(self) -> dict[str, str]:
        """What the job's row says of it; nothing when it does not wait."""
        obstacle, since = self.obstacle, self._since
        if obstacle is None or since is None:
            return {}
        return {
            "waiting_for": obstacle.cause.value,
            "waiting_since": rfc3339(since),
            "waiting_because": str(obstacle),
        }

    def _show(self) -> None:
        obstacle = self.obstacle
        for cause in Cause:
            is_it = obstacle is not None and obstacle.cause is cause
            metrics.WAITING_FOR.set(float(is_it), job=self._job, cause=cause.value)


def until_done(
    step: Callable[[], T], waiting: Waiting, stopping: threading.Event, tell: Callable[[], None] = lambda: None
) -> T | None:
    """What `step` returns, tried again as long as it cannot be done yet; None when asked to stop before.

    `tell` is called after each failure, before the pause. Raises what no waiting can mend.
    """
    while not stopping.is_set():
        try:
            return step()
        except Exception as error:
            obstacle = obstacle_of(error)
            if obstacle is None:
                raise
            # Not the error itself: with its traceback all would be kept that this attempt has remembered.
            obstacle = NotYet(obstacle.cause, str(obstacle))
        if stopping.is_set():
            break
        waiting.for_(obstacle)
        tell()
        stopping.wait(pause_seconds(waiting.attempts))
    return None
