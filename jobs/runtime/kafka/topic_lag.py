"""How far behind each of several topics is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def topic_lags(
    unread: Mapping[str, Mapping[int, int]], frontiers: Mapping[str, datetime | None], now: datetime
) -> list[dict[str, Any]]:
    """`topic`, `records_behind` and `seconds_behind` of each as `jobs.progress` has them, the slowest first; nothing of
    one topic.

    `unread`: records by topic and partition. The seconds are the age of the topic's own frontier while records are
    unread, else 0; None where a partition of it was not heard of yet.
    """
    if len(unread) == 1:
        return []
    found = []
    for topic, by_partition in unread.items():
        records, frontier = sum(by_partition.values()), frontiers[topic]
        seconds = 0.0 if not records else None if frontier is None else max(0.0, (now - frontier).total_seconds())
        found.append(
            {
                "topic": topic,
                "records_behind": records,
                "seconds_behind": None if seconds is None else round(seconds, 3),
            }
        )
    return sorted(found, key=lambda lag: (lag["seconds_behind"] is not None, -(lag["seconds_behind"] or 0)))
