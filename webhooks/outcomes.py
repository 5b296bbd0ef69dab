"""What becomes of a delivery after an attempt: delivered, tried again later, or dead.

The delays are those that Standard Webhooks 1.0 recommends: ten attempts in a little more than three days.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus

DELAYS = (
    *(timedelta(seconds=5), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2), timedelta(hours=5)),
    *(timedelta(hours=10), timedelta(hours=14), timedelta(hours=20), timedelta(hours=24)),
)
"""After the first attempt, the second, …; a delivery that failed once more than that is dead."""
JITTER = 0.1
"""A delay is longer by up to this part of it, so that not all of an endpoint are tried again in one moment."""
MAX_RETRY_AFTER = timedelta(hours=24)
MAX_PAUSE = timedelta(minutes=5)
"""Of an endpoint whose receiver named no time: a gateway answers 502 also where the receiver dies of one event."""
THROTTLED = (
    *(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""The receiver has too much: nothing is sent to the endpoint for a while."""


class State(StrEnum):
    """Of a delivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True)
class Attempt:
    """What came of a POST: a status, or an error where none came. `retry_after` is the header as received.

    With a status, `error` is what the receiver answered about it, where that is read.
    """

    status: int | None = None
    error: str | None = None
    retry_after: str | None = None
    refuses: bool = False
    """For good: another attempt would be refused, too."""


@dataclass(frozen=True)
class Outcome:
    """What to store: when to try again (waiting), until when the whole endpoint waits, whether it is disabled."""

    state: State
    next_attempt_at: datetime | None = None
    paused_until: datetime | None = None
    disables: bool = False


def outcome(attempt: Attempt, attempts: int, now: datetime, chance: Callable[[], float]) -> Outcome:
    """After the attempt number `attempts` (from 1), at `now`. `chance` gives numbers from 0 to 1."""
    status = attempt.status
    if status is not None and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome(State.DELIVERED)
    if status == HTTPStatus.GONE:
        # It waits for a person who enables the endpoint.
        return Outcome(State.WAITING, now, disables=True)
    if attempt.refuses or attempts > len(DELAYS):
        return Outcome(State.DEAD)
    again = now + DELAYS[attempts - 1] * (1 + JITTER * chance())
    if status in THROTTLED:
        retry_at = now + _asked_delay(attempt.retry_after, now)
        paused_until = max(retry_at, min(again, now + MAX_PAUSE))
        return Outcome(State.WAITING, max(again, retry_at), paused_until=paused_until)
    return Outcome(State.WAITING, again)


def _asked_delay(retry_after: str | None, now: datetime) -> timedelta:
    """Of a header `Retry-After`, in seconds or as a date; nothing for what is neither."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        # Of any length: more digits than a timedelta takes are more than the maximum.
        return MAX_RETRY_AFTER if len(text) > 6 else min(timedelta(seconds=int(text)), MAX_RETRY_AFTER)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return timedelta(0)
    until = until.replace(tzinfo=UTC) if until.tzinfo is None else until
    return min(max(until - now, timedelta(0)), MAX_RETRY_AFTER)
