"""Work that cannot be done now is retried by the same process: its row and a metric say what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import structlog

from jobs.runtime.errors import NotYet
from jobs.runtime.transient_errors import transient_error_of
from metering.instants import Clock, rfc3339
from metering.vocabulary import Cause
from monitoring import metrics

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
"""An answer after an outage is noticed within this time."""

log = structlog.get_logger()


def pause_seconds(attempts: int) -> float:
    """How long to wait after this many failures in a row: 0.5, 1, 2, … up to `MAX_PAUSE_SECONDS`."""
    # The exponent is capped because a job may wait for weeks.
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10)) if attempts > 0 else 0.0


class Waiting:
    """Whether a job waits, for what, and since when. It ends when something was done, not at a retry.

    A batch may end it while another thread reports it, so each reads it once.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self.transient_error: NotYet | None = None
        self.attempts = 0
        self._since: datetime | None = None
        self._show()

    def for_(self, transient_error: NotYet) -> None:
        """One more attempt has met `transient_error`."""
        if self.transient_error is None or self.transient_error.cause is not transient_error.cause:
            self._since = self._clock.now()
            log.warning("waiting", job=self._job, waiting_for=transient_error.cause.value, reason=str(transient_error))
        self.transient_error = transient_error
        self.attempts += 1
        self._show()

    def over(self) -> None:
        """Something was done: nothing is waited for."""
        transient_error, since = self.transient_error, self._since
        if transient_error is not None and since is not None:
            seconds = round((self._clock.now() - since).total_seconds(), 1)
            log.info("continues", job=self._job, waited_for=transient_error.cause.value, waited_seconds=seconds)
            self.transient_error, self._since, self.attempts = None, None, 0
            self._show()

    def progress(self) -> dict[str, str]:
        """Its part of the job's row; nothing when the job does not wait."""
        transient_error, since = self.transient_error, self._since
        if transient_error is None or since is None:
            return {}
        return {
            "waiting_for": transient_error.cause.value,
            "waiting_since": rfc3339(since),
            "waiting_because": str(transient_error),
        }

    def _show(self) -> None:
        transient_error = self.transient_error
        for cause in Cause:
            is_it = transient_error is not None and transient_error.cause is cause
            metrics.WAITING_FOR.set(float(is_it), job=self._job, cause=cause.value)


def until_done(
    step: Callable[[], T], waiting: Waiting, stopping: threading.Event, tell: Callable[[], None] = lambda: None
) -> T | None:
    """The result of `step`, retried until it can be done; None when asked to stop before.

    `tell` is called after each failure, before the pause. Raises errors that waiting cannot resolve.
    """
    while not stopping.is_set():
        try:
            return step()
        except Exception as error:
            transient_error = transient_error_of(error)
            if transient_error is None:
                raise
            # Not the error itself: with its traceback all would be kept that this attempt has remembered.
            transient_error = NotYet(transient_error.cause, str(transient_error))
        if stopping.is_set():
            break
        waiting.for_(transient_error)
        tell()
        stopping.wait(pause_seconds(waiting.attempts))
    return None
