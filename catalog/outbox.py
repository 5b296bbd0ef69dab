"""The catalog's outbox in Postgres: what was changed and must be told, until the broker has it.

A change is written here in its own transaction, with its commit time: whoever publishes it, and how often, the same
record goes out. Only one session publishes at a time (`store.alone`), and nothing new is stored before what a
crash left was published; so the records of one key keep their order, and a repeat stands next to its first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog.change import Change, compact_json
from jobs.streams import CatalogTopic

Cursor = psycopg.Cursor[dict[str, Any]]

_ADD = """
INSERT INTO catalog_outbox (topic, key, after, op, committed_at)
SELECT topic, key, after, op, committed_at
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::timestamptz[]) WITH ORDINALITY
    AS change (topic, key, after, op, committed_at, place)
ORDER BY place
"""

_PENDING = """
SELECT number, topic, key, after, op, committed_at FROM catalog_outbox WHERE published_at IS NULL ORDER BY number
"""

_LAST_TOLD = """
SELECT DISTINCT ON (topic, key) topic, key, after, op, committed_at
FROM catalog_outbox JOIN unnest(%s::text[], %s::text[]) AS asked (topic, key) USING (topic, key)
ORDER BY topic, key, number DESC
"""

# Of what was published the last of each key stays: it says which instants were told.
_TOLD = """
WITH told AS (
    UPDATE catalog_outbox SET published_at = clock_timestamp() WHERE number = ANY (%s) RETURNING topic, key, number
)
DELETE FROM catalog_outbox AS old USING told
WHERE (old.topic, old.key) = (told.topic, told.key) AND old.number < told.number AND old.published_at IS NOT NULL
"""


def add(cursor: psycopg.Cursor[Any], changes: Sequence[Change]) -> None:
    """Write changes down, in the transaction that makes them, in the order in which they will be published."""
    if changes:
        cursor.execute(
            _ADD,
            [
                [change.topic.value for change in changes],
                [compact_json(change.key) for change in changes],
                [compact_json(change.after) for change in changes],
                [change.op for change in changes],
                [change.committed_at for change in changes],
            ],
        )


def pending(postgres_url: str) -> list[tuple[int, Change]]:
    """What is not known to have been published, with its number, in order."""
    with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10, autocommit=True) as database:
        return [(row["number"], _change(row)) for row in database.execute(_PENDING)]


def told(postgres_url: str, numbers: Iterable[int]) -> None:
    """The broker has these."""
    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        database.execute(_TOLD, [list(numbers)])


def last_told(cursor: Cursor, changes: Sequence[Change]) -> dict[tuple[str, str], Change]:
    """By `identity`: the last change that the outbox has of each of these rows."""
    topics, keys = [change.topic.value for change in changes], [compact_json(change.key) for change in changes]
    rows = cursor.execute(_LAST_TOLD, [topics, keys]).fetchall()
    return {identity(change): change for change in map(_change, rows)}


def identity(change: Change) -> tuple[str, str]:
    """The row that a change is of: its topic, and its key as text."""
    return change.topic.value, compact_json(change.key)


def _change(row: Mapping[str, Any]) -> Change:
    key, after = json.loads(row["key"]), json.loads(row["after"])
    return Change(CatalogTopic(row["topic"]), key, after, row["op"], row["committed_at"])
