"""The topics that Weir makes, each with what it holds and who uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.streams import EVENTS_TOPIC, HEARTBEATS_TOPIC, CatalogTopic
from metering.vocabulary import ORDERED_EVENTS, Published

RETENTION_HOURS = 36 * 24
"""Longer than ingestion's accept window of 35 days: what is lost to retention would have been rejected anyway."""

ORDERED_MESSAGE_BYTES = 16 << 20
"""An event may be as large as `max_record_bytes` of ingestion, by default 1 MiB, and larger as JSON than it came."""


@dataclass(frozen=True)
class Topic:
    """A topic with the settings that Weir gives it. `holds` says what one record is, `key` what its key is."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    holds: str
    key: str
    written_by: str
    read_by: str
    is_optional: bool = False
    """Whether it is made only where the configuration wants it."""


_STAMPED = {"message.timestamp.type": "LogAppendTime"}
"""By the broker: when a record was received decides whether it is late."""
_COMPACTED = {"cleanup.policy": "compact"}
_CAPTURED = ("Kafka Connect", "ingestion, the audit")


def _catalog(topic: CatalogTopic, holds: str, key: str, written_by: str = _CAPTURED[0]) -> Topic:
    return Topic(topic, 2, _STAMPED | _COMPACTED, f"{holds}, in Debezium's envelope", key, written_by, _CAPTURED[1])


TOPICS = (
    Topic(
        EVENTS_TOPIC,
        4,
        {**_STAMPED, "max.message.bytes": "262144", "retention.ms": str(RETENTION_HOURS * 3_600_000)},
        "a CloudEvent, as JSON",
        "any; the account (`subject`) keeps repeats of an event in one partition",
        "your gateways and services; the API; ingestion (heartbeats); `weir produce`, `backfill`, "
        "`dead-letters redrive`, `usage reverse`",
        "ingestion, the audit",
    ),
    _catalog(CatalogTopic.ACCOUNTS, "a change of an account", "the account"),
    _catalog(CatalogTopic.PLANS, "a change of a plan", "the plan"),
    _catalog(
        CatalogTopic.PRICES,
        "a change of a price",
        "plan, model, meter, currency and `effective_from`",
        "Kafka Connect; `weir catalog apply` (deletes keys of earlier releases)",
    ),
    _catalog(CatalogTopic.DECISIONS, "a person's decision about a straggler", "`usage_lsn` and meter"),
    Topic(
        Published.CORRECTIONS,
        2,
        {"retention.ms": "-1"},
        "a change of a closed window: what it was, what it is, and why",
        "the account",
        "billing",
        "you",
    ),
    Topic(
        Published.WINDOWS,
        2,
        _COMPACTED,
        "the newest state of a window: quantity, price and amount",
        "the window: a JSON array of start, account, model, meter, currency and price version",
        "billing",
        "you",
    ),
    Topic(
        ORDERED_EVENTS,
        4,
        {"retention.ms": str(7 * 24 * 3_600_000), "max.message.bytes": str(ORDERED_MESSAGE_BYTES)},
        "an accepted event, as JSON; only where `ordered_events` of billing is given",
        "the account; without one the event's `source`",
        "billing",
        "you",
        is_optional=True,
    ),
    # Without the topic the connector would wait for it, and all changes with it.
    Topic(
        HEARTBEATS_TOPIC,
        1,
        {**_STAMPED, "retention.ms": "3600000"},
        "a heartbeat of the connector that captures the catalog",
        "the connector",
        "Kafka Connect",
        "nobody",
    ),
)
"""In the order in which they are made."""
