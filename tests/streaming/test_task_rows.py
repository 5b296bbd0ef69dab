"""Many rows of usage come as files, which tasks of Spark read: billing makes the same of them, and misses none."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.runtime.delta.pieces import Pieces, pieces_of_lsns
from jobs.runtime.delta.source import TableSource
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.rules_table import stored_history
from jobs.streams import Table
from tests.pipelines.billing import NOON, billed_by_history, stored
from tests.pipelines.test_billing import random_row
from tests.streaming.journals import environment
from tests.streaming.test_billing_rules_change import Stage

SHORT = BillingConfig(grace_seconds=120)


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Stage:
    stage = Stage(spark, database, tmp_path)
    stage.driver_rows = 30
    return stage


def more(stage: Stage, count: int) -> list[dict[str, Any]]:
    first = len(stage.rows) + 1
    chance = random.Random(first)
    return [random_row(chance, lsn) for lsn in range(first, first + count)]


def test_a_backlog_and_large_commits_are_read_by_tasks_and_few_rows_by_the_driver(
    stage: Stage, spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = stage.driver(SHORT)
    monkeypatch.setattr(driver, "task_rows", 90)
    table = TableSource(JOB, SHORT, environment(database, tmp_path), driver)
    assert table.exists()
    sizes = []
    for batch in table.backlog(spark):
        assert isinstance(batch, Pieces) == (driver.position() < 181), "the last chunk has 20 rows"
        sizes.append(driver.process(batch).records)
    assert sizes == [90, 90, 20]
    table.stream(spark)
    for number, count in enumerate((20, 8, 1, 25, 120, 3)):
        stage.grow(more(stage, count), NOON + timedelta(minutes=40 + number))
    found = []
    while (batch := table.found()) is not None:
        found.append((type(batch), driver.process(batch).records))
    # As many commits as have 90 rows together; then one that has more alone, which nobody can cut.
    assert found == [(Pieces, 54), (Pieces, 120), (pa.Table, 3)]
    assert not table.must_restart()
    assert table.found() is None
    stage.grow(more(stage, 50), NOON + timedelta(minutes=50))
    assert table.has_news()
    instead = table.instead_of(spark.range(1).toDF("lsn"))
    assert isinstance(instead, Pieces), "also where Spark has looked first"
    assert driver.process(instead).records == 50
    assert not table.has_news()
    with psycopg.connect(database) as connection:
        billed, expected = stored(connection), billed_by_history(stage.rows, stored_history(connection, "billing"))
    assert billed.windows == expected.windows
    assert billed.stragglers == expected.stragglers


def test_rows_that_tasks_miss_or_read_twice_are_refused(stage: Stage, tmp_path: Path) -> None:
    stage.grow(more(stage, 40), NOON)
    stage.grow(more(stage, 40), NOON)
    driver = stage.driver(SHORT)
    whole = pieces_of_lsns(DeltaTable(f"{tmp_path}/{Table.USAGE}"), JOB.columns(SHORT), 1, 281)
    first, second, third = whole.tasks
    for tasks in ([second, third], [first, third], [first, second, second, third], [first, first, third]):
        with pytest.raises(Refused, match="would lose rows"):
            driver.process(replace(whole, tasks=tasks))
    assert driver.process(replace(whole, tasks=[third, first, second])).records == 280
    assert driver.process(whole).records == 0
