"""A copy of a Postgres job's rules in the tables' store: if the database is lost, it is rebuilt by them.

Each driver writes one object, `_decided/<job>/<epoch>.json`, after its content is committed. A driver writes all stored
rules when it starts, so the object of the newest epoch is complete; a superseded driver writes under its own epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import obstore
import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from jobs.runtime.delta.object_store import store_of
from jobs.runtime.job import PostgresJob

FOLDER = "_decided"
Rows = Sequence[Mapping[str, Any]]
"""Of the table that a job keeps its history in, as JSON values, in the order of positions."""

_STORED = (
    "SELECT to_jsonb(kept) FROM {} AS kept WHERE coalesce(to_jsonb(kept) ->> 'job', %(job)s) = %(job)s ORDER BY {}"
)
_FORGET = "DELETE FROM {} AS kept WHERE coalesce(to_jsonb(kept) ->> 'job', %(job)s) = %(job)s"
_RESTORE = "INSERT INTO {} SELECT * FROM jsonb_populate_recordset(NULL::{}, %s)"


@dataclass(frozen=True)
class RulesBackup:
    """What the driver of an epoch has written down: its configuration, and all that has decided until then."""

    epoch: int
    config: Mapping[str, Any]
    history: Rows


def stored_rules(connection: psycopg.Connection[Any], job: PostgresJob[Any]) -> list[dict[str, Any]]:
    """The rules of a job's rows in the database."""
    statement = sql.SQL(_STORED).format(sql.Identifier(job.history), sql.Identifier("first_position"))
    return [row for (row,) in connection.execute(statement, {"job": job.name}).fetchall()]


def restore(cursor: psycopg.Cursor[Any], job: PostgresJob[Any], history: Rows) -> None:
    """Replace a job's recorded rules in the database by these."""
    table = sql.Identifier(job.history)
    cursor.execute(sql.SQL(_FORGET).format(table), {"job": job.name})
    cursor.execute(sql.SQL(_RESTORE).format(table, table), [Jsonb(list(history))])


def write_backup(tables: str, job: str, backup: RulesBackup) -> None:
    """Write the file, and remove those of earlier drivers."""
    store = store_of(tables, os.environ)
    text = json.dumps({"config": backup.config, "history": backup.history}, sort_keys=True)
    obstore.put(store, f"{FOLDER}/{job}/{backup.epoch}.json", text.encode(), mode="overwrite")
    for epoch, path in _objects(tables, job):
        if epoch < backup.epoch:
            obstore.delete(store, path)


def read_backup(tables: str, job: str) -> RulesBackup | None:
    """What the newest driver has written down; None where none ever did."""
    newest = max(_objects(tables, job), default=None)
    if newest is None:
        return None
    epoch, path = newest
    document = json.loads(bytes(obstore.get(store_of(tables, os.environ), path).bytes()))
    return RulesBackup(epoch, document["config"], document["history"])


def _objects(tables: str, job: str) -> Iterator[tuple[int, str]]:
    for listed in obstore.list(store_of(tables, os.environ), f"{FOLDER}/{job}"):
        for stored_object in listed:
            name = stored_object["path"].rpartition("/")[2].removesuffix(".json")
            if name.isdecimal():
                yield int(name), stored_object["path"]
