"""What is sent and what must come of it, written down together, one call after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random

from traffic import events
from traffic.catalog import Catalog
from traffic.events import Call, Document
from traffic.meters import Used
from traffic.placement import DEVICE_FIRST_MS, DEVICE_LAST_MS, Lags, Placement, floor_minute
from traffic.population import Timeline

ATTEMPTS = 1_000
NOTHING: Used = {}
QUANTITY = "quantity"
"""Instead of the request id of what names no request: ingestion makes one, which the traffic does not know."""


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record: when to send it, and which disposition it must get. `reason` is a class of reasons.

    `time` is what its event says, null where its clock is corrected.
    """

    send_at_ms: int
    key: bytes | None
    value: bytes
    kind: str
    disposition: str
    reason: str | None
    source: str | None
    id: str | None
    time: str | None = None
    source_epoch: str = ""
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What must become of a request, and what the completion that counts has told of what was used."""

    account: str
    request_id: str
    outcome: str
    model: str | None
    event_ms: int
    decided_ms: int
    reported: Used
    texts: Mapping[str, str]
    """What its events say besides, by column."""
    knows_late: bool
    """Whether the late changes of the catalog were told before its last part came."""
    beyond_us: int = 0
    """Microseconds of its time beyond `event_ms`."""
    is_of_request: bool = True
    """Whether it is what became of a request; else its request id is QUANTITY."""
    latency_ms: int | None = None
    """How long its call took, as the completion that counts has told."""

    @property
    def event_us(self) -> int:
        """When it occurred, in microseconds since 1970."""
        return self.event_ms * 1_000 + self.beyond_us


@dataclass(frozen=True, slots=True)
class Activity:
    """An accepted event of a user. A `moving` one may lie up to the slack later."""

    account: str
    user: str
    event_ms: int
    moving: bool
    beyond_us: int = 0


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What a reversal takes back of a request: all, or of a meter all or so much."""

    account: str
    request_id: str
    meter: str | None
    quantity: Decimal | None


class Script:
    """Collects records, outcomes and activity. `take` draws calls whose fate is certain."""

    def __init__(
        self,
        rng: Random,
        placement: Placement,
        catalog: Catalog,
        timeline: Timeline,
        calls: Iterator[Call],
        *,
        knows_late: bool,
    ) -> None:
        self.rng = rng
        self.placement = placement
        self.catalog = catalog
        self.timeline = timeline
        self.knows_late = knows_late
        # A report that failed waits for a better one where the best one bills: `scenarios.reports` sends such calls.
        self._calls = map(_completed, calls) if placement.policy.best_report_bills else calls
        self.records: list[Record] = []
        self.outcomes: list[Outcome] = []
        self.activity: list[Activity] = []
        self.taken_back: list[TakenBack] = []

    def take(self, *, at_most_lag_ms: int | None = None, model: str | None = None) -> Call:
        """The next call of the sessions; with a limit, one that is sent soon after it ended."""
        for _ in range(ATTEMPTS):
            call = next(self._calls) if model is None else replace(next(self._calls), model=model)
            lag_ms = self.timeline.sent_at(call.ended_ms) - call.started_ms
            if (at_most_lag_ms is None or lag_ms <= at_most_lag_ms) and self.is_clear(call):
                return call
        raise AssertionError("no call fits; the catalog's changes leave no room")

    def take_lagging(self, lags: Lags) -> tuple[Call, int]:
        """A call that ended a lag before it is sent, and the instant of sending."""
        for _ in range(ATTEMPTS):
            sent_ms = self.rng.randint(self.timeline.start_ms, self.timeline.last_ms)
            call = moved(next(self._calls), sent_ms - lags.draw(self.rng))
            if self.is_clear(call):
                return call, sent_ms
        raise AssertionError("no call fits; the catalog's changes leave no room")

    def take_between(self, first_ms: int, last_ms: int) -> tuple[Call, int]:
        """A call that ended within a range of event time but is sent at any time during the traffic."""
        for _ in range(ATTEMPTS):
            call = moved(next(self._calls), self.rng.randint(first_ms, last_ms))
            if self.is_clear(call):
                return call, self.rng.randint(self.timeline.start_ms, self.timeline.last_ms)
        raise AssertionError("no call fits; the catalog's changes leave no room")

    def take_straggling(self) -> tuple[Call, int]:
        """A call that ended in `near_past`, and the instant of sending."""
        near_ms, far_ms = self.near_past()
        return self.take_between(self.timeline.start_ms - far_ms, self.timeline.start_ms - near_ms)

    def take_from_device(self, *, long_ago: bool) -> tuple[Call, int]:
        """A call of a device that lies where in its minute a delay of sending leaves it, and the instant of sending."""
        timeline = self.timeline
        for _ in range(ATTEMPTS):
            call = next(self._calls)
            near_ms = timeline.start_ms - self.rng.randint(*self.near_past()) if long_ago else call.ended_ms
            ended_ms = floor_minute(near_ms) + self.rng.randint(DEVICE_FIRST_MS, DEVICE_LAST_MS)
            source = f"device/{self.rng.randrange(40)}-{self.catalog.tag}"
            call = replace(moved(call, ended_ms), source=source)
            if self.is_clear(call, self.placement.slack_ms) and ended_ms <= timeline.last_ms:
                drawn_ms = self.rng.randint(timeline.start_ms, timeline.last_ms)
                return call, drawn_ms if long_ago else timeline.sent_at(ended_ms)
        raise AssertionError("no call fits; the catalog's changes leave no room")

    def near_past(self) -> tuple[int, int]:
        """Between these times before now (milliseconds), all is a straggler, if grace allows in the session of now."""
        lags = self.placement.straggler(near_seconds=1_000)
        return lags.least_ms, lags.most_ms

    def is_clear(self, call: Call, slack_ms: int = 0) -> bool:
        """Whether no change of the catalog is near that concerns this call."""
        first_ms = call.started_ms - self.placement.margin_ms
        last_ms = call.ended_ms + slack_ms + self.placement.margin_ms
        return not any(first_ms < at < last_ms for at in self.catalog.changes(call.account, call.model))

    def send(
        self, document: Document, at_ms: int, kind: str, disposition: str = "accepted", reason: str | None = None
    ) -> None:
        """Send a document at an instant, keyed by its subject."""
        subject = document.get("subject")
        key = None if subject is None else subject.encode()
        value, source = events.encoded(document), document["source"]
        time = None if self.placement.policy.is_device(source) else document["time"]
        self.records.append(Record(at_ms, key, value, kind, disposition, reason, source, document["id"], time))

    def reverse(
        self, call: Call, at_ms: int, *, number: int = 1, meter: str | None = None, quantity: Decimal | None = None
    ) -> Document:
        """Send the reversal of that number of a call, and write down what it takes back; the document."""
        document = events.reversal(
            call, desk_of(self.catalog.tag), at_ms, number=number, meter=meter, quantity=quantity
        )
        self.send(document, at_ms, "reversal" if meter is None else "credit")
        self.taken_back.append(TakenBack(call.account, call.request_id, meter, quantity))
        return document

    def send_damaged(self, value: bytes, key: bytes | None, at_ms: int, kind: str) -> None:
        """Send bytes that are no event."""
        self.records.append(Record(at_ms, key, value, kind, "rejected", "malformed", None, None))

    def was_active(self, call: Call, event_ms: int, *, moving: bool = False, beyond_us: int = 0) -> None:
        """An accepted event that belongs to a session, if the call names a user."""
        if call.user is not None:
            self.activity.append(Activity(call.account, call.user, event_ms, moving, beyond_us))

    def expect(
        self, call: Call, outcome: str, event_ms: int, sent_ms: int, reported: Used = NOTHING, *, waits: bool = False
    ) -> None:
        """What must become of the call, when its last part is sent at `sent_ms`; it may wait for a better report."""
        waits = waits or outcome in ("abandoned", "orphaned")
        model = None if outcome == "orphaned" else call.model
        decided_ms = sent_ms + (self.placement.policy.timeout_seconds(model) * 1000 if waits else 0)
        texts = events.texts(call, has_request=outcome != "orphaned", has_response=outcome != "abandoned")
        beyond_us = 0 if outcome == "abandoned" else call.beyond_us
        self.outcomes.append(
            Outcome(
                call.account,
                call.request_id,
                outcome,
                model,
                event_ms,
                decided_ms,
                reported,
                texts,
                self.knows_late,
                beyond_us,
                latency_ms=None if outcome == "abandoned" else call.latency_ms,
            )
        )

    def expect_quantity(self, call: Call, sent_ms: int, reported: Used) -> None:
        """What must become of an event that reports some of what a call used, and names no request."""
        self.outcomes.append(
            Outcome(
                call.account,
                QUANTITY,
                "matched",
                call.model,
                call.ended_ms,
                sent_ms,
                reported,
                {},
                self.knows_late,
                is_of_request=False,
            )
        )


def desk_of(tag: str) -> str:
    """The source of a run that takes back."""
    return f"desk/{tag}"


def _completed(call: Call) -> Call:
    """The same call, had it not failed."""
    return replace(call, status="completed")


def moved(call: Call, ended_ms: int) -> Call:
    """The same call at another time."""
    return replace(call, started_ms=ended_ms - (call.ended_ms - call.started_ms), ended_ms=ended_ms)
