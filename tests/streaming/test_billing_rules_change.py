"""Method: usage cut anywhere, by drivers with other rules and between failures, compared with the table `rules`.

Windows and stragglers are to the last digit what each row makes of the rules that held at its lsn.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.rules import Decision
from jobs.runtime.delta import LSN, DeltaWriter
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.ownership import Ownership
from jobs.runtime.postgres_sink import PostgresSink
from jobs.runtime.rules_table import stored_history
from jobs.streams import USAGE, Meter, Table
from tests.pipelines.billing import billed_by_history, stored
from tests.pipelines.test_billing import random_row
from tests.streaming.journals import environment

LOGGED = {"log_date": datetime(2026, 3, 1, tzinfo=UTC).date(), "logged_at": datetime(2026, 3, 1, tzinfo=UTC)}
SHORT = BillingConfig(grace_seconds=120)
LONG = BillingConfig(grace_seconds=600)
DROP = BillingConfig(grace_seconds=120, late_policy=dict.fromkeys(Meter, Decision.DROP))


class Stage:
    """Usage of 200 rows, and drivers of billing that fold it."""

    def __init__(self, spark: SparkSession, database: str, tables: Path) -> None:
        chance = random.Random(5)
        self.rows = [random_row(chance, lsn) for lsn in range(1, 201)]
        self._spark, self._database, self._tables = spark, database, tables
        usage = DeltaWriter(str(tables), Table.USAGE, "joins", 1)
        placed = [{**LOGGED, "request_lsn": row["lsn"], **row} for row in self.rows]
        usage.commit(pa.Table.from_pylist(placed, schema=USAGE), {LSN: len(placed) + 1})

    def driver(self, config: BillingConfig) -> PostgresSink:
        ownership = Ownership.take(JOB.name, self._database, {})
        return PostgresSink(JOB, Context(config, environment(self._database, self._tables), self._spark, ownership))

    def fold(self, driver: PostgresSink, end: int) -> None:
        usage = self._spark.read.parquet(*DeltaTable(f"{self._tables}/{Table.USAGE}").file_uris())
        driver.process(usage.where(f"lsn >= {driver.position()} AND lsn < {end}").select(*JOB.columns))


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Stage:
    return Stage(spark, database, tmp_path)


def held(database: str) -> list[tuple[int, dict[str, Any]]]:
    with psycopg.connect(database) as connection:
        return [(held.first, dict(held.rules)) for held in stored_history(connection, "billing")]


def test_oracle_what_the_table_of_rules_says_bills_the_same_again(stage: Stage, database: str) -> None:
    stage.fold(stage.driver(SHORT), 41)
    stage.fold(stage.driver(SHORT), 61)
    assert held(database) == [(1, SHORT.deciding)]

    # A change that decided nothing, because its driver met another one or was killed in its first batch, never held.
    frozen = stage.driver(LONG)
    longer = stage.driver(DROP)
    with pytest.raises((Fenced, psycopg.OperationalError)):
        stage.fold(frozen, 101)
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("ALTER TABLE batches ADD CONSTRAINT nothing_more CHECK (next_position < 62)")
        with pytest.raises(psycopg.errors.CheckViolation):
            stage.fold(longer, 101)
        other.execute("ALTER TABLE batches DROP CONSTRAINT nothing_more")
    assert held(database) == [(1, SHORT.deciding)]

    stage.fold(stage.driver(DROP), 121)
    stage.fold(stage.driver(LONG), 160)
    stage.fold(stage.driver(SHORT), 201)
    assert held(database) == [(1, SHORT.deciding), (61, DROP.deciding), (121, LONG.deciding), (160, SHORT.deciding)]
    with psycopg.connect(database) as connection:
        found, expected = stored(connection), billed_by_history(stage.rows, stored_history(connection, "billing"))
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows
    assert {row["decision"] for row in found.stragglers.values()} == {"correct", "drop"}


def test_a_database_that_kept_no_rules_takes_those_of_its_next_batch(stage: Stage, database: str) -> None:
    stage.fold(stage.driver(SHORT), 31)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM rules")
    driver = stage.driver(SHORT)
    assert held(database) == []
    stage.fold(driver, 51)
    assert held(database) == [(31, SHORT.deciding)]
