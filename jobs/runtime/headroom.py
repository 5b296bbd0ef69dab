"""How much room is left: on the disk of the tables, and in the topic before retention deletes unread records."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from metering.instants import Clock

REQUEST_TIMEOUT_SECONDS = 10
LIMITS_KEPT_SECONDS = 600.0
"""A topic's retention may change; the change need not be noticed at once."""


@dataclass(frozen=True)
class RetentionLimits:
    """What a topic keeps of each partition; None is without a limit."""

    age: timedelta | None
    size_bytes: int | None


def retention_headroom(
    limits: RetentionLimits, unread: Mapping[int, int], record_bytes: int, read_until: datetime | None, now: datetime
) -> float:
    """How much of a topic's retention is left before an unread record goes: 1 with nothing unread, 0 at the end.

    `unread` are records by partition, `record_bytes` what one of them takes at most on average, and `read_until` is F:
    no unread record was received before it. The scarcer of age and size counts; compressed records have more room.
    """
    if not any(unread.values()):
        return 1.0
    used = [0.0]
    if limits.age is not None and read_until is not None:
        used.append((now - read_until) / limits.age)
    if limits.size_bytes is not None:
        used.append(max(unread.values()) * record_bytes / limits.size_bytes)
    return min(1.0, max(0.0, 1 - max(used)))


def least_retention(limits: Iterable[RetentionLimits], headrooms: Iterable[float]) -> dict[str, Any]:
    """Of several topics the shortest age of a record, and the least that is left (`retention_headroom`), as
    `jobs.progress` has them: `seconds` (None: without a limit) and `headroom`.
    """
    ages = [limit.age.total_seconds() for limit in limits if limit.age is not None]
    return {"seconds": min(ages, default=None), "headroom": round(min(headrooms, default=1.0), 4)}


class Lasting:
    """How long a topic keeps its records at the traffic since this was made, which is one more limit of their age."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: Mapping[int, int] = {}
        self._since = clock.monotonic()

    def seconds(self, limits: RetentionLimits, ends: Mapping[int, int], record_bytes: int) -> float:
        """The shorter of age and size, whose limit is of each partition; `ends` are offsets. +Inf without a limit."""
        age = math.inf if limits.age is None else limits.age.total_seconds()
        elapsed = self._clock.monotonic() - self._since
        self._first = {**ends, **self._first}
        written = max((end - self._first[partition] for partition, end in ends.items()), default=0) * record_bytes
        if limits.size_bytes is None or written <= 0 or elapsed <= 0:
            return age
        return min(age, limits.size_bytes * elapsed / written)


def free_share(tables: str) -> float | None:
    """The free share of what the tables' file system gives to us, as `df` has it.

    None for an object store, and for a file system that does not say how large it is (some that a process serves).
    """
    if "://" in tables:
        return None
    usage = shutil.disk_usage(tables)
    size_bytes = usage.used + usage.free
    return usage.free / size_bytes if size_bytes else None


class TopicRetention:
    """The retention limits of one topic, read periodically. Raises `KafkaException` when the broker does not answer."""

    def __init__(self, admin: AdminClient, topic: str, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._topic = ConfigResource(ResourceType.TOPIC, str(topic))  # the library refuses a StrEnum
        self._due = 0.0
        self._limits = RetentionLimits(None, None)

    def limits(self) -> RetentionLimits:
        """As they were within the last minutes."""
        if self._clock.monotonic() >= self._due:
            found = self._admin.describe_configs([self._topic], request_timeout=REQUEST_TIMEOUT_SECONDS)
            settings = found[self._topic].result()
            self._limits = limits_of({name: str(entry.value) for name, entry in settings.items()})
            self._due = self._clock.monotonic() + LIMITS_KEPT_SECONDS
        return self._limits


def limits_of(settings: Mapping[str, str]) -> RetentionLimits:
    """The limits in a topic's configuration; negative ones are none, and a topic that deletes nothing has none."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return RetentionLimits(None, None)
    age_ms, size_bytes = (int(settings.get(name, -1)) for name in ("retention.ms", "retention.bytes"))
    age = None if age_ms < 0 else timedelta(milliseconds=min(age_ms, timedelta.max // timedelta(milliseconds=1)))
    return RetentionLimits(age, None if size_bytes < 0 else size_bytes)
