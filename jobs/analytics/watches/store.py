"""Watches in Postgres: added, removed and listed, and the hits that analytics has stored of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from jobs.queries.pages import Page, paged
from jobs.queries.reading import Database, select
from jobs.settings.watch_columns import watch_columns
from metering.contracts.model import Kind
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.watches.expressions import Expression, column_tests, only_account
from metering.watches.parser import parse

MAX_WATCHES = 10_000
COLUMNS = ("name", "condition", "account", "state", "first_position", "hits", "added_by", "added_at")
HIT_COLUMNS = ("hour", "event_time", "account", "request_id", "request_lsn", "completion_lsn")
HIT_KEY = ("hour", "request_lsn", "completion_lsn")
"""What hits of a watch are ordered by: no two have the same values."""
_CONTRACTS = "SELECT config -> 'contracts' AS contracts FROM jobs WHERE job = 'ingestion'"
_RUNS = "SELECT is_running FROM watch_status"
# Two that add at the same time would both be the last.
_LOCK = "LOCK TABLE watches IN SHARE ROW EXCLUSIVE MODE"
_COUNT = "SELECT count(*) AS count, count(*) FILTER (WHERE name = %s) AS same FROM watches WHERE removed_at IS NULL"
_ADD = """
INSERT INTO watches (name, condition, columns, account, added_by) VALUES (%(name)s, %(condition)s, %(columns)s,
    %(account)s, %(by)s)
"""
_REMOVE = """
UPDATE watches SET removed_by = %s, removed_at = clock_timestamp() WHERE removed_at IS NULL AND name = %s
"""
_LIST = f"""
SELECT name, condition, watches.account,
       CASE WHEN NOT is_running THEN 'off' WHEN first_position IS NULL THEN 'waiting' ELSE 'running' END AS state,
       first_position, coalesce((
           SELECT sum(greatest(hits, 0))::bigint FROM watch_hours WHERE watch_hours.watch_id = watches.watch_id
       ), 0) AS hits, added_by, added_at
FROM watches CROSS JOIN watch_status
WHERE removed_at IS NULL ORDER BY name LIMIT {MAX_WATCHES}
"""
_CONDITION = "SELECT condition, columns FROM watches WHERE removed_at IS NULL AND name = %(name)s"
# The hour is that of the event time, and is in the key.
_HITS = """
SELECT hour, event_time, h.account, request_id, nullif(request_lsn, 0) AS request_lsn,
       nullif(completion_lsn, 0) AS completion_lsn
FROM watch_hits AS h JOIN watches USING (watch_id)
WHERE removed_at IS NULL AND name = %(name)s AND net > 0
  AND (%(start)s::timestamptz IS NULL OR event_time >= %(start)s AND hour >= date_trunc('hour', %(start)s, 'UTC'))
  AND (%(end)s::timestamptz IS NULL OR event_time < %(end)s AND hour < %(end)s)
  AND (%(accounts)s::text[] IS NULL OR h.account = ANY (%(accounts)s))
ORDER BY hour, h.request_lsn, h.completion_lsn
"""


class UnknownWatch(ValueError):
    """No watch has this name."""


class Unaccepted(ValueError):
    """A watch that is not stored: there is one of its name, or there are too many."""


def columns_in_force(database: Database) -> dict[str, Kind]:
    """What a condition can name, by the contracts that ingestion was started with last."""
    row = database.execute(_CONTRACTS).fetchone()
    return watch_columns(contracts_of((row["contracts"] if row else None) or {}, shipped()))


def kinds_in(expression: Expression) -> dict[str, str]:
    """The kind of each column that it names."""
    return {test.column: test.kind.value for test in column_tests(expression)}


def is_run(database: Database) -> bool:
    """Whether analytics was started with `watches: true` and is not off: else nothing runs past them."""
    row = database.execute(_RUNS).fetchone()
    return bool(row and row["is_running"])


def add_watch(database: Database, name: str, condition: str, by: str, max_watches: int = MAX_WATCHES) -> None:
    """Store a watch. Raises Mistake for a condition that says nothing, Unaccepted."""
    expression = parse(condition, columns_in_force(database))
    database.execute(_LOCK)
    row = database.execute(_COUNT, [name]).fetchone()
    assert row is not None
    if row["same"]:
        raise Unaccepted(f"there is a watch {name}: remove it first, for a condition never changes")
    if row["count"] >= max_watches:
        raise Unaccepted(f"there are {max_watches:,} watches, which is the most: remove one first")
    columns = json.dumps(kinds_in(expression))
    values = {"name": name, "condition": condition, "columns": columns, "account": only_account(expression), "by": by}
    database.execute(_ADD, values)


def remove_watch(database: psycopg.Connection[Any], name: str, by: str) -> None:
    """Nothing runs past it from the next batch on; its hits stay until they are too old. Raises UnknownWatch."""
    if database.execute(_REMOVE, [by, name]).rowcount == 0:
        raise UnknownWatch(_unknown(name))


def watch_rows(database: Database, page: Page | None = None) -> Iterator[dict[str, Any]]:
    """Rows with the keys COLUMNS, by name: `hits` of the hours that are stored.

    `state` is off where nothing runs past any (`is_run`), else waiting until analytics has begun with it, then running.
    """
    statement, more = paged(_LIST, ("name",), page)
    return select(database, statement, more)


def condition_of(database: Database, name: str) -> tuple[str, Expression]:
    """The condition of a watch as text and as a tree. Raises UnknownWatch."""
    row = database.execute(_CONDITION, {"name": name}).fetchone()
    if row is None:
        raise UnknownWatch(_unknown(name))
    kinds = {column: Kind(kind) for column, kind in row["columns"].items()}
    return row["condition"], parse(row["condition"], kinds)


def hit_rows(
    database: Database,
    name: str,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    accounts: Sequence[str] = (),
    page: Page | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows with the keys HIT_COLUMNS: the stored hits of a watch, in the order of their hours. Raises UnknownWatch.

    `accounts` empty: of all.
    """
    condition_of(database, name)
    statement, more = paged(_HITS, HIT_KEY, page)
    parameters = {"name": name, "start": start, "end": end, "accounts": list(accounts) or None}
    return select(database, statement, {**parameters, **more})


def _unknown(name: str) -> str:
    return f"there is no watch {name}: `weir watch list` shows all"
