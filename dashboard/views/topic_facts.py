"""What the card of ingestion says of several topics of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboard.queries.applications import TopicLag
from dashboard.wording import count, literal

MAX_TOPICS = 3
"""On a card; `weir topics list` lists all."""


def topic_facts(topics: Sequence[TopicLag]) -> Iterator[str]:
    """The slowest of several topics, each with its lag; how many more are behind."""
    behind = [lag for lag in topics if lag.records_behind]
    for lag in behind[:MAX_TOPICS]:
        age = "for an unknown time" if lag.seconds_behind is None else f"{lag.seconds_behind:,.1f} s"
        yield f"Topic {literal(lag.topic)}: {count(lag.records_behind)} records behind, {age}"
    if len(behind) > MAX_TOPICS:
        yield f"Behind, too: {len(behind) - MAX_TOPICS} more (`weir topics list`)"
    elif topics and not behind:
        yield f"Everything of {len(topics)} topics is read"
