"""Whoever follows the topics: what there is to read, and what they must end up with, as messages name and write it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from psycopg.types.json import Jsonb

from jobs.billing.messages import correction_message, window_message
from metering.vocabulary import Published
from tests.pipelines.folding import rows_of
from tests.waiting import wait_until

Row = dict[str, Any]
NAMES = {
    Published.WINDOWS: """
        version, window_start, window_end, account, model, meter, currency, price_version, quantity::text,
        trim_scale(unit_price)::text AS unit_price, trim_scale(amount)::text AS amount, late_quantity::text, late_rows,
        unmetered_rows, corrected, updated_at
    """,
    Published.CORRECTIONS: """
        window_start, account, model, meter, currency, cause, old_quantity::text, new_quantity::text,
        trim_scale(old_amount)::text AS old_amount, trim_scale(new_amount)::text AS new_amount, decision, corrected_at,
        dimensions, usage_lsns
    """,
}
TABLES = {Published.WINDOWS: "usage_windows", Published.CORRECTIONS: "corrections"}


def truth(connection: psycopg.Connection[Any], topic: Published) -> dict[str, Row]:
    """By id: what a message of each row that there is says in `data`."""
    message = window_message if topic is Published.WINDOWS else correction_message
    rows = rows_of(connection, f"SELECT {NAMES[topic]} FROM {TABLES[topic]}")
    said = [json.loads(message(row)[1])["data"] for row in rows]
    assert len({one["id"] for one in said}) == len(said)
    return {one["id"]: one for one in said}


class Follower:
    """Applies messages as `examples/follow.py` does: each id once per version, and only forward."""

    def __init__(self) -> None:
        self.held: dict[Published, dict[str, Row]] = {topic: {} for topic in Published}
        self.done: list[tuple[Published, str, int]] = []

    def take(self, topic: Published, value: bytes) -> None:
        said = json.loads(value)["data"]
        held = self.held[topic].get(said["id"])
        if held is None or said["version"] > held["version"]:
            self.held[topic][said["id"]] = said
            self.done.append((topic, said["id"], said["version"]))
        elif said["version"] == held["version"]:
            assert said == held, "one id at one version is one row"


def committed(bootstrap: str, topic: str) -> list[Message]:
    """All that a reader of this topic finds, partition by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "enable.partition.eof": True})
    with closing(consumer):
        partitions = consumer.list_topics(str(topic), timeout=10).topics[str(topic)].partitions
        consumer.assign([TopicPartition(str(topic), partition, 0) for partition in partitions])
        found: list[Message] = []
        ended: set[int | None] = set()

        def is_read() -> bool:
            for message in consumer.consume(1_000, timeout=0.2):
                if (error := message.error()) is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
            return ended == set(partitions)

        wait_until(is_read, f"{topic} being read")
        return found


NOT_TOLD = {"next_position"}
"""How far billing's bookkeeping of a window is: of no use to anybody else."""


def refuse_other_windows(connection: psycopg.Connection[Any], messages: list[Message]) -> int:
    """Make `usage_windows` again of nothing but the topic, and compare, column by column; gives how many rows.

    Written without the code that makes messages: the table's own columns say what must be in them.
    """
    last = {message.key(): json.loads(message.value() or b"") for message in messages}
    rows = [{**event["data"], "updated_at": event["time"]} for event in last.values()]
    columns = [
        name
        for (name,) in connection.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE (table_schema, table_name) = ('weir', 'usage_windows')"
        )
    ]
    assert all(row.keys() == {*columns, "id"} - NOT_TOLD for row in rows), "a column is not in the topic"
    told = ", ".join(name for name in columns if name not in NOT_TOLD)
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE TEMPORARY TABLE made_again (LIKE usage_windows)")
        connection.execute("ALTER TABLE made_again ALTER next_position DROP NOT NULL")
        connection.execute(
            "INSERT INTO made_again SELECT * FROM jsonb_populate_recordset(NULL::made_again, %s)", [Jsonb(rows)]
        )
        for one, other in (("made_again", "usage_windows"), ("usage_windows", "made_again")):
            differ = connection.execute(f"SELECT {told} FROM {one} EXCEPT ALL SELECT {told} FROM {other}").fetchall()
            assert not differ, f"only in {one}: {differ[:3]}"
    return len(rows)


def table(messages: list[Message]) -> dict[str, Any]:
    """A topic as a compacted one is read: of each key the last value."""
    return {(message.key() or b"").decode(): json.loads(message.value() or b"")["data"] for message in messages}
