"""Every version of accounts and prices: kept in Delta, and as frames that a batch is priced with."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession

from jobs.joins.catalog_versions import catalog_frames
from jobs.runtime.catalog_changes import InvalidChangeError, parse_change
from jobs.runtime.delta import LSN, DeltaWriter
from jobs.streams import ACCOUNTS, PRICES, SCHEMAS, CatalogTopic, Table

log = structlog.get_logger()

POSITION = "journal"
TABLE_OF = {CatalogTopic.ACCOUNTS: Table.ACCOUNTS, CatalogTopic.PRICES: Table.PRICES}


class Catalog:
    """The version tables and their frames; a change that a table holds already is not taken twice."""

    def __init__(self, spark: SparkSession, tables: str, epoch: int, driver: int) -> None:
        self._spark = spark
        self._writers = {table: DeltaWriter(tables, table, "joins", epoch, driver) for table in TABLE_OF.values()}
        self._taken = {table: writer.watch(POSITION) or 1 for table, writer in self._writers.items()}
        self._versions = {table: writer.table.to_pyarrow_table() for table, writer in self._writers.items()}
        self._frames: tuple[DataFrame, DataFrame] | None = None

    def take(self, changes: pl.DataFrame, position: int) -> None:
        """Store the changes among journal rows (lsn, topic, value) that end before `position`."""
        for topic, table in TABLE_OF.items():
            new = changes.filter((pl.col("topic") == topic) & (pl.col("lsn") >= self._taken[table]))
            versions = [_version(topic, value, lsn) for lsn, value in new.select("lsn", "value").iter_rows()]
            if rows := [version for version in versions if version is not None]:
                self._store(table, pa.Table.from_pylist(rows, schema=SCHEMAS[table]), position)

    def _store(self, table: Table, rows: pa.Table, position: int) -> None:
        writer = self._writers[table]
        writer.commit(rows, {POSITION: position, LSN: writer.next_lsn})
        self._taken[table] = position
        self._versions[table] = pa.concat_tables([self._versions[table], rows])
        self._frames = None

    def frames(self) -> tuple[DataFrame, DataFrame]:
        """Accounts and prices as `price` wants them; made anew only when something changed."""
        if self._frames is None:
            accounts, prices = (
                self._versions[t].cast(s) for t, s in ((Table.ACCOUNTS, ACCOUNTS), (Table.PRICES, PRICES))
            )
            self._frames = catalog_frames(self._spark, accounts, prices)
        return self._frames


def _version(topic: str, value: bytes | None, lsn: int) -> dict[str, Any] | None:
    """The version that an accepted change makes; None where only an older ingestion could have accepted it."""
    try:
        return parse_change(topic, value, lsn)
    except InvalidChangeError as error:
        log.error("a catalog change of an older version is passed over", topic=topic, lsn=lsn, problem=str(error))
        return None
