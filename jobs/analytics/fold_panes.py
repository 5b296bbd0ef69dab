"""Merges a batch's panes with the stored ones; those of the last batches are still in memory, so none is read twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import psycopg
import pyarrow as pa

from jobs.analytics.newest_panes import AddedPane, Key, NewestPanes, Pane, account_of
from jobs.arrival_times import MICROSECONDS
from jobs.runtime.postgres.sink import stage
from jobs.streams import INSTANT
from metering.views import View

_DECLARED = """
SELECT view, version, view_id, coalesce(ceil(extract(epoch FROM since) / 60), '-infinity')::float8
FROM analytics_views WHERE is_declared
"""
_OF_SPARK = """
SELECT view, version, (extract(epoch FROM window_start) / 60)::bigint, keys, measures
FROM staged JOIN analytics_views USING (view, version) WHERE is_declared
"""
_WANTED = pa.schema(
    [
        pa.field("place", pa.int32(), nullable=False),
        pa.field("view_id", pa.int32(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("keys", pa.string(), nullable=False),
    ]
)
_STORED = """
WITH digested AS MATERIALIZED (
    SELECT place, view_id, window_start, sha256(jsonb_send(keys::jsonb)) AS keys_digest FROM wanted
)
SELECT place, measures::text FROM digested JOIN analytics_panes USING (view_id, window_start, keys_digest)
"""
"""Digests are made first: in the condition of the join they may be made for each pair of rows."""
_CHANGED = pa.schema(
    [
        pa.field("view_id", pa.int32(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("account", pa.string()),
        pa.field("keys", pa.string(), nullable=False),
        pa.field("measures", pa.string(), nullable=False),
        pa.field("is_new", pa.bool_(), nullable=False),
    ]
)
_REPLACE = """
UPDATE analytics_panes SET measures = changed.measures::jsonb, updated_at = now()
FROM (
    SELECT view_id, window_start, sha256(jsonb_send(keys::jsonb)) AS keys_digest, measures
    FROM changed WHERE NOT is_new OFFSET 0
) AS changed
WHERE (analytics_panes.view_id, analytics_panes.window_start, analytics_panes.keys_digest)
    = (changed.view_id, changed.window_start, changed.keys_digest)
"""
"""All at once: a statement for each pane cost as much again as the pane."""
_ADD = """
INSERT INTO analytics_panes (view_id, window_start, account, keys, measures)
SELECT view_id, window_start, account, keys::jsonb, measures::jsonb FROM changed WHERE is_new
"""


class Declared(NamedTuple):
    """A view as it is declared now, and the first minute that it measures."""

    view: View
    view_id: int
    since: float


Added: TypeAlias = tuple[Key, Declared, tuple[Any, ...]]
"""What is added to a pane: its key, its view, and parts of the measures."""


def fold_panes(
    cursor: psycopg.Cursor[Any], views: Mapping[str, View], newest: NewestPanes, of_driver: Iterable[AddedPane]
) -> None:
    """Merge panes that the driver made, and those in `staged`, into `analytics_panes`.

    Panes of minutes before those that a view measures would lack outcomes, and are not stored.
    """
    declared = {
        (view, version): Declared(views[view], view_id, since)
        for view, version, view_id, since in cursor.execute(_DECLARED).fetchall()
    }
    added = (
        ((of.view_id, pane.minute, pane.keys), of, pane.parts)
        for pane in chain(of_driver, _of_spark(cursor, views))
        if (of := declared.get((pane.view, pane.version))) is not None
    )
    for some in _in_parts(added, newest):
        _fold(cursor, newest, some)


def _in_parts(added: Iterable[Added], newest: NewestPanes) -> Iterator[Sequence[Added]]:
    """As many at a time as may be open at once."""
    some: list[Added] = []
    size = 0
    for key, of, parts in added:
        some.append((key, of, parts))
        size += newest.bytes_of(key, of.view)
        if len(some) >= newest.max_open or size >= newest.max_open_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some


def _fold(cursor: psycopg.Cursor[Any], newest: NewestPanes, added: Sequence[Added]) -> None:
    stored = _stored(cursor, {key: of.view for key, of, _ in added if newest.get(key) is None})
    changed: dict[Key, Pane] = {}
    for key, of, parts in added:
        pane = changed.get(key) or newest.get(key) or stored.get(key)
        if pane is None:
            if key[1] < of.since:
                continue
            pane = Pane.of(of.view, key[2], is_stored=False)
        changed[key] = pane
        pane.add(parts)
    if changed:
        _write(cursor, changed, newest)


def _of_spark(cursor: psycopg.Cursor[Any], views: Mapping[str, View]) -> Iterator[AddedPane]:
    for view, version, minute, keys, measures in cursor.execute(_OF_SPARK).fetchall():
        yield AddedPane(view, version, minute, tuple(json.loads(keys)), _parts(views[view], measures))


def _parts(view: View, measures: str) -> tuple[Any, ...]:
    found = json.loads(measures)
    return tuple(found.get(measure.name) for measure in view.measures)


def _stored(cursor: psycopg.Cursor[Any], wanted: Mapping[Key, View]) -> dict[Key, Pane]:
    """Those of these panes that there are rows of."""
    panes = {key: Pane.of(view, key[2], is_stored=True) for key, view in wanted.items()}
    if not panes:
        return {}
    keys = list(panes)
    stage(cursor, _WANTED, _table(_WANTED, [range(len(keys)), *_identities(panes)]), "wanted")
    found = {}
    for place, measures in cursor.execute(_STORED).fetchall():
        pane = found[keys[place]] = panes[keys[place]]
        pane.add(_parts(pane.view, measures))
    cursor.execute("DROP TABLE wanted")
    return found


def _write(cursor: psycopg.Cursor[Any], changed: Mapping[Key, Pane], newest: NewestPanes) -> None:
    view_ids, starts, keys = _identities(changed)
    accounts = [account_of(pane.view, listed) for (_, _, listed), pane in changed.items()]
    measures = [pane.measures() for pane in changed.values()]
    is_new = [not pane.is_stored for pane in changed.values()]
    stage(cursor, _CHANGED, _table(_CHANGED, [view_ids, starts, accounts, keys, measures, is_new]), "changed")
    replaced = cursor.execute(_REPLACE).rowcount
    cursor.execute(_ADD)
    cursor.execute("DROP TABLE changed")
    for pane in changed.values():
        pane.is_stored = True
    newest.keep(changed, measures)
    if replaced < len(changed) - sum(is_new):
        # While this driver was frozen `weir retain` took it for off: what it removed stays so.
        newest.forget_all()


def _identities(panes: Mapping[Key, Pane]) -> tuple[list[int], list[int], list[str]]:
    starts = [minute * MICROSECONDS for _, minute, _ in panes]
    return [view_id for view_id, _, _ in panes], starts, [pane.keys for pane in panes.values()]


def _table(schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> pa.Table:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
