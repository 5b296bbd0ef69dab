"""Sends past events: validated as ingestion validates them, and no faster than live traffic can bear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from time import monotonic

from cli.backfilling.records import PastEvent
from cli.dead_letter_rows import text_of
from cli.output import Row
from cli.redrive.offline import Offline, Verdict, bytes_of
from deployment.sender import Sender
from jobs.ingestion.documents import subject_of
from jobs.runtime.kafka.marks import FIRST_RECEIVED
from metering.windows import tumbling

LINES = 10**12
"""More than a file has: file and line are one number."""


class Fate(StrEnum):
    """What becomes of a past event."""

    SENT = "sent"
    ACCEPTED = "would_be_accepted"
    REJECTED = "would_be_rejected"
    UNLISTED = "unlisted_source"
    REFUSED = "refused"


class Backfill:
    """Validates past events and, with a sender, sends what ingestion would take; counts what became of them."""

    def __init__(self, files: Sequence[str], offline: Offline, sending: Sending | None, is_closed: IsClosed) -> None:
        self._files, self._offline, self._sending, self._is_closed = files, offline, sending, is_closed
        self.fates: Counter[Fate] = Counter()
        self.correcting = 0
        """Those that are taken and whose minute has closed."""
        self.last: PastEvent | None = None
        """The one that was looked at last."""

    @property
    def summary(self) -> str:
        """How many became what."""
        counts = [f"{self.fates[fate]} {fate.replace('_', ' ')}" for fate in Fate if self.fates[fate]]
        return ", ".join(counts) or "none"

    @property
    def fails(self) -> bool:
        """Whether some are not on their way."""
        return any(self.fates[fate] for fate in (Fate.REJECTED, Fate.UNLISTED, Fate.REFUSED))

    def rows(self, parts: Iterator[list[PastEvent]], tell: Callable[[str], None]) -> Iterator[Row]:
        """What was not sent, and what the broker refused; without a sender all. Keys: file, line, fate, says, value."""
        for events in parts:
            verdicts = self._offline.verdicts(
                [e.document for e in events], [None] * len(events), [e.mark for e in events]
            )
            for event, verdict in zip(events, verdicts, strict=True):
                yield from self._sent(event, verdict)
            tell(f"{sum(self.fates.values())} read, at {events[-1].mark}")
        if self._sending is not None:
            yield from self._refused(self._sending.refused())

    def _sent(self, event: PastEvent, verdict: Verdict) -> Iterator[Row]:
        fate, reason = Fate.ACCEPTED if self._sending is None else Fate.SENT, None
        if verdict.source is not None and verdict.reception_mark is not None and verdict.first_received_at is None:
            fate, reason = Fate.UNLISTED, f"{verdict.source} is none of jobs.ingestion.backfill.sources"
        if verdict.reason is not None and (fate is not Fate.UNLISTED or verdict.reason not in ("too_old", "future")):
            fate, reason = Fate.REJECTED, f"{verdict.reason}: {verdict.violation}"
        self.fates[fate] += 1
        self.last = event
        if fate in (Fate.SENT, Fate.ACCEPTED) and verdict.event_time is not None:
            self.correcting += self._is_closed(verdict.event_time)
        if fate is not Fate.SENT:
            yield self._row(event.file, event.line, fate, reason, event.document)
        elif self._sending is not None:
            self._sending.send(event, verdict.types)

    def _refused(self, refused: dict[int, str]) -> Iterator[Row]:
        for number, reason in refused.items():
            self.fates[Fate.SENT] -= 1
            self.fates[Fate.REFUSED] += 1
            yield self._row(*divmod(number, LINES), Fate.REFUSED, reason, None)

    def _row(self, file: int, line: int, fate: Fate, reason: str | None, document: bytes | None) -> Row:
        return {"file": self._files[file], "line": line, "fate": fate, "detail": reason, "value": text_of(document)}


class Sending:
    """Sends events with their marks, each to the topic of its types, at most `per_second` of them."""

    def __init__(self, sender: Sender, topic_of: Callable[[Collection[str | None]], str], per_second: int) -> None:
        self._sender, self._topic_of, self._per_second = sender, topic_of, per_second
        self._begun, self._sent = monotonic(), 0

    def send(self, event: PastEvent, types: Collection[str | None]) -> None:
        """One, keyed as `weir produce` keys it, as soon as it may be."""
        while (early := self._sent / self._per_second - (monotonic() - self._begun)) > 0:
            self._sender.wait(min(early, 0.2))
        self._sent += 1
        headers = {} if event.mark is None else {FIRST_RECEIVED: bytes_of(event.mark)}
        number = event.file * LINES + event.line
        topic = self._topic_of(types)
        self._sender.send(topic, subject_of(event.document), event.document, number=number, headers=headers)

    def refused(self) -> dict[int, str]:
        """Why the broker refused those that it did, once it has answered."""
        self._sender.flush()
        return {refusal.number: refusal.reason for refusal in self._sender.refused}


class IsClosed:
    """Whether the minute of an event has closed, so that it can only be corrected."""

    def __init__(self, closed_until: datetime | None, history_until: datetime | None) -> None:
        self._closed_until, self._history_until = closed_until, history_until

    def __call__(self, event_time: datetime) -> bool:
        """Whether that of this time has."""
        end = tumbling(event_time).end
        is_history = self._history_until is not None and end <= self._history_until
        return self._closed_until is not None and end <= self._closed_until and not is_history
