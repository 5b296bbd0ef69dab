"""What a driver copies into Postgres before it is folded: each row as it was."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import stage

COLUMNS = pa.schema(
    [pa.field("number", pa.int64()), pa.field("text", pa.string()), pa.field("absent", pa.string())],
)
TEXTS = ["", "null", 'a "quoted", comma', "two\nlines", "\\.", "NULL", None]


@pytest.mark.parametrize("numbers", [[1, None, 3, 4, 5, 6, 7], [None] * 7])
def test_rows_are_read_as_they_were_staged(connection: psycopg.Connection[Any], numbers: list[int | None]) -> None:
    rows = [{"number": number, "text": text, "absent": None} for number, text in zip(numbers, TEXTS, strict=True)]
    with connection.transaction(), connection.cursor() as cursor:
        stage(cursor, COLUMNS, pa.Table.from_pylist(rows, schema=COLUMNS))
        found = cursor.execute("SELECT number, text, absent FROM staged").fetchall()
    assert found == [tuple(row.values()) for row in rows]


def test_of_no_rows_there_is_an_empty_table(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        stage(cursor, COLUMNS, COLUMNS.empty_table())
        assert cursor.execute("SELECT number, text, absent FROM staged").fetchall() == []


def test_a_driver_has_memory_for_a_batch(database: str) -> None:
    ownership = Ownership.take("billing", database, {})
    try:
        shown = [ownership.connection.execute(f"SHOW {name}").fetchone() for name in ("work_mem", "temp_buffers")]
    finally:
        ownership.close()
    assert shown == [("32MB",), ("32MB",)]
