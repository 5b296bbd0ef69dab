"""topics.md: every Kafka topic, what it holds, and who writes and reads it."""

from __future__ import annotations

from deployment.topic_list import TOPICS, Topic
from laptop.connect import TOPICS as CONNECT_TOPICS
from laptop.connect import TOPICS_HOLD
from reference.markdown import cell, code, page, table

_INTRODUCTION = """
`weir topics` makes the topics that are missing, and refuses settings that would make bills wrong. `weir up` and the
chart run it. Replication is your broker's default. [Kafka ACLs](../kafka-acls.md) lists the rights of each user, and
[Follow what changes](../how-to/follow-changes.md) what `windows` and `corrections` hold.
"""
_CONNECT = """
Kafka Connect makes these itself, compacted. Nobody else may write to them.
"""


def topics_page() -> str:
    """The page."""
    uses = table(
        ("topic", "one record is", "key", "written by", "read by"),
        [(code(topic.name), *map(cell, (topic.holds, topic.key, topic.written_by, topic.read_by))) for topic in TOPICS],
    )
    settings = table(
        ("topic", "partitions", "kept", "settings"),
        [(code(topic.name), str(topic.partitions), kept(topic), _settings(topic)) for topic in TOPICS],
    )
    of_connect = table(
        ("topic", "holds"), [(code(name), cell(TOPICS_HOLD[what])) for what, name in CONNECT_TOPICS.items()]
    )
    body = (
        f"## What they hold\n\n{uses}\n## How they are made\n\n{settings}\n"
        f"## Of Kafka Connect\n\n{_CONNECT.strip()}\n\n{of_connect}"
    )
    return page("Topics", "`deployment/topic_list.py`", _INTRODUCTION, body)


def kept(topic: Topic) -> str:
    """How long its records are kept."""
    if topic.settings.get("cleanup.policy") == "compact":
        return "the newest of each key"
    milliseconds = int(topic.settings["retention.ms"])
    if milliseconds < 0:
        return "for ever"
    hours = milliseconds // 3_600_000
    return f"{hours // 24} days" if hours >= 48 else f"{hours} h"


def _settings(topic: Topic) -> str:
    return ", ".join(code(f"{name}={value}") for name, value in topic.settings.items())
