"""The rows of the journal, of events whose lsn and repeats are known: their disposition, document and columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl
import pyarrow as pa

from jobs.ingestion.formats import DOCUMENT
from jobs.runtime.kafka import headers
from metering.vocabulary import Disposition


def with_dispositions(events: pl.DataFrame) -> pl.DataFrame:
    """Events (`reason`; `same`: of a repeat, whether its content is that of its first) with their disposition."""
    return events.with_columns(
        pl.when(pl.col("reason").is_not_null())
        .then(pl.lit(Disposition.REJECTED.value))
        .when(pl.col("same"))
        .then(pl.lit(Disposition.DUPLICATE.value))
        .when(pl.col("same").not_())
        .then(pl.lit(Disposition.CONFLICT.value))
        .otherwise(pl.lit(Disposition.ACCEPTED.value))
        .alias("disposition")
    )


def with_documents(events: pl.DataFrame) -> pl.DataFrame:
    """Disposed events (`EventValidator.schema`) with the value that the journal keeps: what is rejected as it was
    received, with its headers; all else as JSON.
    """
    is_rejected, document = pl.col("reason").is_not_null(), pl.coalesce(DOCUMENT, "value")
    return events.with_columns(
        pl.when(is_rejected).then("value").otherwise(document).alias("value"),
        pl.when(is_rejected).then(headers.COLUMN).alias(headers.COLUMN),
    )


@dataclass(frozen=True)
class Commit:
    """What is the same in all rows of a commit, with the journal's columns; its first row has the `rules`."""

    first_lsn: int
    frontier: datetime | None
    logged_at: datetime
    rules: str | None
    schema: pa.Schema

    def with_rules(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows (lsn) with `rules`."""
        rules = pl.when(pl.col("lsn") == self.first_lsn).then(pl.lit(self.rules, pl.String))
        return rows.with_columns(rules.alias("rules"))

    def made(self, rows: pl.DataFrame) -> pa.Table:
        """The rows that are committed."""
        return journal_rows(rows, self.schema, self.frontier, self.logged_at)


def journal_rows(rows: pl.DataFrame, schema: pa.Schema, frontier: datetime | None, logged_at: datetime) -> pa.Table:
    """Rows with the journal's columns; what a row does not have is null. All rows of a commit share their log date."""
    complete = rows.with_columns(
        pl.lit(logged_at).alias("logged_at"),
        pl.lit(logged_at.date()).alias("log_date"),
        pl.lit(frontier, dtype=pl.Datetime("us", "UTC")).alias("frontier"),
    )
    missing = [pl.lit(None).alias(name) for name in schema.names if name not in complete.columns]
    return complete.with_columns(missing).select(schema.names).to_arrow().cast(schema)
