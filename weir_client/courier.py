"""What to send next, and what to do with each answer: all of the client but HTTP and waiting.

At least once, an event leaves the outbox when the API has taken or rejected it, so a kill in between has it sent again;
Weir bills it once, since it has the same `source` and `id`. At most once, it leaves the outbox before it is sent.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from weir_client.answers import Later, Meaning, Refused, Rejection, Taken, TooMuch
from weir_client.dead_file import DeadEvent, DeadFile
from weir_client.errors import NotFlushed, OutboxError
from weir_client.outbox import Outbox

log = logging.getLogger("weir_client")

MAX_EVENTS = 1_000
MAX_BYTES = 3 << 20
"""Of a batch; the API takes 4 MiB, and an event at most 252 KiB."""
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 60.0
BROKEN_DELAY_SECONDS = 5.0
"""After an error of the disk, or a fault of this client."""
Random = Callable[[], float]


class Delivery(StrEnum):
    """What happens to events whose fate nobody knows, because an answer was lost."""

    AT_LEAST_ONCE = "at_least_once"
    """They are sent again, and billed once."""
    AT_MOST_ONCE = "at_most_once"
    """They are dropped: for data that nobody bills, such as traces of development, since some of it is lost."""


@dataclass(frozen=True)
class Batch:
    """Events as the outbox has them."""

    numbers: Sequence[int]
    bodies: Sequence[bytes]

    @property
    def content(self) -> bytes:
        """The body of the request."""
        return b"[" + b",".join(self.bodies) + b"]"


class Courier:
    """Of one outbox. Not for several threads at once. All methods raise OutboxError."""

    def __init__(self, outbox: Outbox, dead: DeadFile, delivery: Delivery, jitter: Random = random.random) -> None:
        self._outbox = outbox
        self._dead = dead
        self._delivery = delivery
        self._jitter = jitter
        self._max_events = MAX_EVENTS
        self._failures = 0
        self._held: Batch | None = None
        """At most once: what has left the outbox and was surely not written."""
        self.problem: str | None = None
        """Why the last request did not succeed."""

    def next_batch(self) -> Batch | None:
        """The oldest events; None: there is nothing to send, or another process sends."""
        if self._held is not None:
            return self._held
        if not self._outbox.become_sender():
            return None
        found = self._outbox.oldest(self._max_events, MAX_BYTES)
        if not found:
            return None
        batch = Batch([number for number, _ in found], [body for _, body in found])
        if self._delivery is Delivery.AT_MOST_ONCE:
            self._held = batch
            self._remove_held()
        return batch

    def first_held(self) -> int | None:
        """The number of the oldest event that has left the outbox, and waits to be sent; None where there is none."""
        held = self._held
        return None if held is None else held.numbers[0]

    def _remove_held(self) -> None:
        assert self._held is not None, "the caller has set it, so that no moment knows nothing of these events"
        try:
            self._outbox.remove(self._held.numbers)
        except OutboxError:
            self._held = None
            raise

    def answered(self, batch: Batch, answer: Meaning) -> float:
        """Act on an answer. Returns after how many seconds to send again."""
        match answer:
            case Taken(rejections):
                self._settle(batch, range(len(batch.numbers)), rejections)
            case Refused(rejections):
                self._settle(batch, [each.index for each in rejections], rejections)
            case TooMuch(detail) if len(batch.numbers) == 1 or self._delivery is Delivery.AT_MOST_ONCE:
                indices = range(len(batch.numbers))
                self._settle(batch, indices, [Rejection(index, "refused", None, detail) for index in indices])
            case TooMuch():
                self._max_events = len(batch.numbers) // 2
                return 0.0
            case Later(detail, is_unwritten, retry_after):
                return self.failed(batch, detail, is_unwritten=is_unwritten, retry_after_seconds=retry_after)
        self._failures, self.problem = 0, None
        self._max_events = min(MAX_EVENTS, 2 * self._max_events)
        return 0.0

    def failed(
        self, batch: Batch, problem: str, *, is_unwritten: bool, retry_after_seconds: float | None = None
    ) -> float:
        """There was no answer, or one that promises nothing. Returns after how many seconds to send again."""
        if problem != self.problem:
            log.warning("Events wait to be sent: %s", problem)
        self.problem = problem
        if self._held is not None and not is_unwritten:
            log.warning("%d events are dropped, since they may have been taken", len(batch.numbers))
            self._held = None
        backoff = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        if retry_after_seconds is not None:
            # Not before, and not all senders at the same moment.
            return retry_after_seconds + self._jitter() * min(backoff, max(1.0, retry_after_seconds / 4))
        return backoff * (0.5 + self._jitter() / 2)

    def broken(self, error: Exception) -> float:
        """The outbox failed, or this client did. Returns after how many seconds to try again."""
        log.error("Events cannot be sent: %s", error, exc_info=None if isinstance(error, OutboxError) else error)
        self.problem = str(error)
        return BROKEN_DELAY_SECONDS

    def _settle(self, batch: Batch, indices: Sequence[int], rejections: Sequence[Rejection]) -> None:
        """These events have left: the rejected ones to the dead file, before they are forgotten."""
        if rejections:
            dead = [DeadEvent(batch.bodies[each.index], each.reason, each.path, each.rule) for each in rejections]
            self._dead.append(dead, datetime.now(UTC).isoformat())
            log.error("%d events are rejected: %s has them, and says why", len(dead), self._dead.path)
        if self._held is None:
            self._outbox.remove([batch.numbers[index] for index in indices])
            return
        left = [index for index in range(len(batch.numbers)) if index not in set(indices)]
        self._held = (
            Batch([batch.numbers[index] for index in left], [batch.bodies[index] for index in left]) if left else None
        )


def is_waiting(outbox: Outbox, courier: Courier, last: int) -> bool:
    """Whether an event up to this number has not been settled. Raises OutboxError."""
    first, held = outbox.first(), courier.first_held()
    return any(number is not None and number <= last for number in (first, held))


def not_flushed(outbox: Outbox, courier: Courier) -> NotFlushed:
    """What `flush` raises: how many events wait, and why. Raises OutboxError."""
    waiting = f"{len(outbox)} events wait in {outbox.path}"
    return NotFlushed(f"{waiting}: {courier.problem}" if courier.problem else f"{waiting}.")
