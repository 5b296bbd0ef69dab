"""Changes of usage windows, as billing publishes them, and how far a client has come in their topic."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from jobs.billing.messages import WINDOW_ID

_ACCOUNT = WINDOW_ID.index("account")
# Kafka's client writes a topic's id in base64, which has `+` and `/`.
_EVENT_ID = re.compile(r"([A-Za-z0-9+/_-]{1,64})/((?:\d{1,9}:\d{1,18},)*\d{1,9}:\d{1,18})?")
MAX_EVENT_ID_CHARACTERS = 32_768


@dataclass(frozen=True)
class Change:
    """The newest state of one window: a CloudEvent in one line of JSON, and its place in the topic."""

    partition: int
    offset: int
    account: str
    event: bytes


@dataclass
class Progress:
    """What a client has: next offset by partition of a topic; what it lacks counts as 0."""

    topic_id: str
    positions: dict[int, int] = field(default_factory=dict)

    def lacks(self, change: Change) -> bool:
        """Whether a change is news."""
        return change.offset >= self.positions.get(change.partition, 0)

    def reach(self, partition: int, position: int) -> None:
        """Everything below this offset is known."""
        self.positions[partition] = max(position, self.positions.get(partition, 0))

    def has_reached(self, positions: Mapping[int, int]) -> bool:
        """Whether everything below these offsets is known."""
        return all(self.positions.get(partition, 0) >= position for partition, position in positions.items())

    @property
    def event_id(self) -> str:
        """As an event's `id`, which a client sends back as `Last-Event-ID`."""
        return f"{self.topic_id}/{','.join(f'{part}:{offset}' for part, offset in sorted(self.positions.items()))}"


def progress_of(event_id: str) -> Progress | None:
    """What `Progress.event_id` was; None for anything else."""
    found = _EVENT_ID.fullmatch(event_id) if len(event_id) <= MAX_EVENT_ID_CHARACTERS else None
    if found is None:
        return None
    pairs = (pair.split(":") for pair in (found[2] or "").split(",") if pair)
    return Progress(found[1], {int(partition): int(offset) for partition, offset in pairs})


def change_of(message: Message) -> Change | None:
    """The change in a record; None for what is none, such as a record that somebody else wrote."""
    key, event = message.key(), message.value()
    if not isinstance(key, bytes) or not isinstance(event, bytes) or b"\n" in event or b"\r" in event:
        return None
    try:
        account = json.loads(key)[_ACCOUNT]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    place = message.partition() or 0, message.offset() or 0
    return Change(*place, account, event) if isinstance(account, str) else None


def may_see(change: Change, accounts: Collection[str]) -> bool:
    """Whether a change is of one of these accounts; none: of any."""
    return not accounts or change.account in accounts
