"""One version of the tables as Spark reads them, and what goes between Spark and Polars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.joins.memory import KEY
from jobs.runtime.delta.object_store import readable_by_spark
from jobs.runtime.families import FAMILY_SQL
from metering.words import Disposition

LOG_DATE = "log_date"
Dates = list[tuple[str, str, str]] | None
"""As delta-rs wants it."""


@dataclass(frozen=True)
class Versions:
    """What is read: a version of the journal and one of usage, which was made of it; from the log date `since` on."""

    spark: SparkSession
    tables: str
    journal: DeltaTable
    usage: DeltaTable
    since: date | None = None

    def of_journal(self, columns: Iterable[str], where: str) -> DataFrame:
        """Rows of the journal; an older one has no `family` to ask for."""
        return self._read(self.journal, columns, as_stored(where, self.journal), self._recent)

    def of_usage(self, columns: Iterable[str], where: str = "true") -> DataFrame:
        """Rows of usage."""
        return self._read(self.usage, columns, where, self._recent)

    def earlier(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Those of the keys (`memory.KEY`) of which the journal holds accepted rows from before `since`."""
        before = [(LOG_DATE, "<", str(self.since))]
        where = f"disposition = '{Disposition.ACCEPTED}' AND {FAMILY_SQL} IS NOT NULL"
        rows = self._read(self.journal, KEY, as_stored(where, self.journal), before)
        asked = F.broadcast(
            self.spark.createDataFrame(keys.select(KEY).to_arrow().cast(arrow(keys.select(KEY).schema)))
        )
        return pl.DataFrame(rows.join(asked, list(KEY), "left_semi").distinct().toArrow())

    @property
    def journal_rows(self) -> int:
        """How many rows of the journal are read."""
        files = pl.DataFrame(self.journal.get_add_actions(flatten=True))
        if self.since is not None and len(files):
            files = files.filter(pl.col("partition.log_date").cast(pl.Date) >= self.since)
        return int(files["num_records"].sum()) if len(files) else 0

    @property
    def _recent(self) -> Dates:
        return None if self.since is None else [(LOG_DATE, ">=", str(self.since))]

    def _read(self, version: DeltaTable, columns: Iterable[str], where: str, dates: Dates) -> DataFrame:
        """The columns that the table has got already, from the files that its log names: no need to plan that twice."""
        stored = pa.schema(version.schema().to_arrow())
        fields = [stored.field(name) for name in stored.names if name != LOG_DATE]
        typed = self.spark.createDataFrame([], from_arrow_schema(pa.schema(fields))).schema
        files = [readable_by_spark(uri) for uri in version.file_uris(partition_filters=dates)]
        found = self.spark.read.schema(typed).parquet(*files) if files else self.spark.createDataFrame([], typed)
        return found.where(where).select(*[name for name in columns if name in stored.names])


def as_stored(condition: str, journal: DeltaTable) -> str:
    """The same of a journal of an earlier release, which has no `family`."""
    has_one = any(field.name == "family" for field in journal.schema().fields)
    return condition if has_one else condition.replace(FAMILY_SQL, FAMILY_SQL.replace("coalesce(family,", "coalesce("))


def arrow(schema: pl.Schema) -> pa.Schema:
    """With the texts and bytes that Spark wants."""
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    fields = pl.DataFrame(schema=schema).to_arrow().schema
    return pa.schema([field.with_type(small.get(field.type, field.type)) for field in fields])


def spark_schema(schema: pl.Schema) -> str:
    """As Spark writes it."""
    names = {pl.String: "string", pl.Int64: "bigint", pl.Datetime: "timestamp", pl.Binary: "binary"}
    return ", ".join(
        f"`{name}` "
        + (f"decimal({kind.precision},{kind.scale})" if isinstance(kind, pl.Decimal) else names[type(kind)])
        for name, kind in schema.items()
    )
