"""The catalog of a run of traffic: published first, and changed when its first events are journalled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from catalog.change import Change
from catalog.file import CatalogFile
from catalog.publishing import Offsets, publish
from catalog.store import TABLES, CatalogTable, change_of, store
from cli.author import who
from cli.catalog import apply_catalog, wait_for_joins
from deployment.draining import Tell, Waiter
from deployment.positions import describe
from deployment.stack import Deployment
from traffic.catalog import Catalog
from traffic.instants import instant_of
from traffic.late_catalog import Deletion, Late
from traffic.scenarios.incidents import limit_rows

CATALOG_SECONDS = 120.0


def tell_catalog(stack: Deployment, late: Late, tell: Tell) -> None:
    """Store what is known from the start, and wait until joins has it: no event is journalled before."""
    changes = [
        row
        for file in late.before.files()
        for row in store(stack.postgres_url, CatalogFile.model_validate(file), who(), backdates=True, confirms=True)
    ]
    wait_for_joins(stack, changes, CATALOG_SECONDS, tell, "The catalog of the traffic is stored")


def tell_limits(stack: Deployment, catalog: Catalog) -> None:
    """Store the limit of each account that incidents may cross."""
    file = CatalogFile.model_validate({"limits": limit_rows(catalog)})
    store(stack.postgres_url, file, who(), backdates=True, confirms=True)


def wait_until_journalled(stack: Deployment, offsets: Offsets, tell: Tell) -> None:
    """Wait until ingestion has read up to these offsets: later changes are new to all those events."""
    if offsets:
        topics = {topic.name: topic for topic in describe(stack.kafka_bootstrap, {topic for topic, _ in offsets})}
        required = {topics[topic].position(partition): offset for (topic, partition), offset in offsets.items()}
        Waiter(stack, CATALOG_SECONDS, tell).until_journalled(required)


def change_late(stack: Deployment, late: Late, tell: Tell) -> None:
    """Delete and change rows as Debezium would publish it late, and wait until joins has it.

    No database records that something was deleted hours ago: it is published as if, before the rows are deleted.
    """
    gone = _delete(stack, late.deletions, instant_of(late.gone_ms), dry_run=True)
    for table in reversed(TABLES):
        offsets = publish(stack.kafka_bootstrap, [change for change in gone if change.topic is table.topic])
        wait_until_journalled(stack, offsets, tell)
    _delete(stack, late.deletions, instant_of(late.gone_ms))
    file = CatalogFile.model_validate(late.file)
    apply_catalog(stack, file, CATALOG_SECONDS, tell, backdates=True, confirms=True)


def _delete(
    stack: Deployment, deletions: Sequence[Deletion], committed_at: datetime, *, dry_run: bool = False
) -> list[Change]:
    """Accounts first, plans last, so that no reader sees an account without its prices. `dry_run`: only list."""
    with psycopg.connect(stack.postgres_url, row_factory=dict_row, connect_timeout=10) as database:
        database.execute("SET LOCAL TimeZone = 'UTC'")
        gone = [
            change_of(table, {**row, "op": "d"}, committed_at)
            for table in reversed(TABLES)
            for deletion in deletions
            if deletion.table == table.name
            for row in _deleted(database, table, deletion.key)
        ]
        if dry_run:
            database.rollback()
    return gone


def _deleted(
    database: psycopg.Connection[dict[str, Any]], table: CatalogTable, key: Mapping[str, str]
) -> list[dict[str, Any]]:
    where = sql.SQL(" AND ").join(
        sql.SQL("{} = {}::{}").format(sql.Identifier(name), value, sql.SQL(table.columns[name]))
        for name, value in key.items()
    )
    return database.execute(
        sql.SQL("DELETE FROM {} WHERE {} RETURNING *").format(sql.Identifier("catalog", table.name), where)
    ).fetchall()
