"""Reads rows within a snapshot of Postgres as they are fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.rows import DictRow

RANDOM_PAGE_COST = "1.1"
"""Of a page that an index points to, where the next page of a scan is 1: disks have no heads to move any more. With the
server's default, 4, a month of twenty million windows was found by reading all of them.
"""
PLANNED = f"set_config('random_page_cost', '{RANDOM_PAGE_COST}', true)"
"""Of a SELECT with which a transaction that reads begins."""
_ROWS_PER_FETCH = 5_000

Database = psycopg.Connection[DictRow]
"""A connection within one read-only transaction, in UTC."""


def select(database: Database, statement: str, parameters: Mapping[str, Any]) -> Iterator[DictRow]:
    """The rows of `statement` as they are fetched, in portions: a listing may be larger than memory."""
    with database.cursor(name="weir_listing") as cursor:
        cursor.itersize = _ROWS_PER_FETCH
        cursor.execute(statement, parameters)
        yield from cursor
