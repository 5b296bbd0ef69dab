"""Batches for the jobs that fold into Postgres: rows as Arrow, reduced by Spark, folded in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Counts, Fold, PostgresJob
from jobs.runtime.postgres.sink import stage


def frame(spark: SparkSession, schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> DataFrame:
    """`rows` as a frame of `schema`; a column that a row does not name is null."""
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=nullable))


def fold_table(
    connection: psycopg.Connection[Any],
    job: PostgresJob[Any],
    staged: pa.Table,
    config: Any,
    previous_frontier: datetime | None = None,
    *,
    frontier: datetime | None = None,
    next_position: int = 1,
    is_whole: bool = True,
) -> Counts:
    """Fold what `build` returned, in one transaction, without the position that the sink moves with it."""
    with connection.transaction(), connection.cursor() as cursor:
        stage(cursor, job.staged, staged)
        rules = (EffectiveRules(1, config.deciding),)
        return job.fold(cursor, config, Fold(previous_frontier, frontier, next_position, is_whole, rules))


def rows_of(connection: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    """The rows of a query, by column name."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()
