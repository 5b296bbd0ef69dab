"""Rows of the database as frames, in pieces: nulls, line breaks and numbers exactly as in the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

PIECE_BYTES = 8 * 2**20
"""About as much is read before it is parsed; a row is never cut."""


def copy_rows(
    connection: psycopg.Connection[Any], statement: sql.Composable, schema: pl.Schema
) -> Iterator[pl.DataFrame]:
    """The rows of a statement whose columns are those of the schema."""
    buffered: list[bytes] = []
    size = 0
    with connection.cursor().copy(sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(statement)) as copy:
        for row in copy:
            buffered.append(bytes(row))
            size += len(buffered[-1])
            if size >= PIECE_BYTES:
                yield parse_rows(b"".join(buffered), schema)
                buffered, size = [], 0
    if buffered:
        yield parse_rows(b"".join(buffered), schema)


def parse_rows(text: bytes, schema: pl.Schema) -> pl.DataFrame:
    """Lines as Postgres writes them: a quoted field is always a text, an empty field is null."""
    # A text that begins with a byte order mark would lose it at the beginning.
    text = ",".join(schema.names()).encode() + b"\n" + text
    read = csv.ReadOptions(block_size=len(text) + 1, use_threads=False)
    parse = csv.ParseOptions(newlines_in_values=True)
    convert = csv.ConvertOptions(
        column_types=pl.DataFrame(schema=schema).to_arrow().schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    return pl.DataFrame(csv.read_csv(pa.BufferReader(text), read, parse, convert)).cast(schema)
