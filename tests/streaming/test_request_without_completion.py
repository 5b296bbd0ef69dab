"""`request_without_completion` of `examples/patterns.yaml`: heartbeats alone say that no completion came."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from jobs.analytics.pipeline import JOB as ANALYTICS
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.delta.table import open_table
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.stack import load_stack_config
from jobs.streams import Table
from metering.vocabulary import EventType
from tests.pipelines.pattern_rows import standing
from tests.streaming.journals import WRITTEN, Journal, at, environment, event, heartbeat

TIMEOUT_SECONDS = 120
JOINS_CONFIG = JoinsConfig(completion_timeout_seconds=TIMEOUT_SECONDS).settled((), is_new=True)
DECLARED = [field for field in IngestionConfig().validator().fields if field.name not in WRITTEN.names]
ANALYTICS_CONFIG = load_stack_config(Path("examples/patterns.yaml")).jobs.analytics


class Drivers:
    """Joins and analytics, which read whatever the journal has."""

    def __init__(self, spark: SparkSession, database: str, tables: Path) -> None:
        self.database, self.tables, self.journal = database, tables, Journal(tables, declared=DECLARED)
        where = environment(database, tables)

        def context(job: str, config: Any) -> Context[Any]:
            owner = Ownership.take(job, database, config.model_dump(mode="json"))
            return Context(config, where, spark, owner, MachineClock(), Denials())

        self._joins = UsageSink(JOINS, context("joins", JOINS_CONFIG))
        self._analytics = PostgresSink(ANALYTICS, context("analytics", ANALYTICS_CONFIG))

    def accept(self, *rows: dict[str, Any]) -> None:
        """Commit rows to the journal and let both process them."""
        self.journal.commit(rows)
        self._go(self._joins, Table.JOURNAL, JOINS.columns(JOINS_CONFIG))
        self._go(self._analytics, Table.USAGE, ANALYTICS.columns(ANALYTICS_CONFIG))

    def _go(self, driver: Any, reads: Table, columns: Any) -> None:
        if (table := open_table(str(self.tables), reads)) is None:
            return
        first, end = driver.position(), table.transaction_version("lsn") or 1
        if first < end:
            driver.process(pieces_of_lsns(table, columns, first, end).read())
        driver.advance()

    def found(self) -> list[tuple[datetime, dict[str, Any], dict[str, Any]]]:
        """When each match began, its key, and its measures."""
        with psycopg.connect(self.database) as connection:
            rows = standing(connection, "request_without_completion")
        return [(row["started_at"], row["keys"], row["measures"]) for row in rows]


@pytest.fixture
def drivers(spark: SparkSession, database: str, tmp_path: Path) -> Drivers:
    return Drivers(spark, database, tmp_path)


def test_a_request_is_found_when_heartbeats_alone_have_passed_its_timeout_and_not_before(drivers: Drivers) -> None:
    drivers.accept(
        event(EventType.REQUEST, "lost", 0, api_key_id="k"),
        event(EventType.REQUEST, "answered", 1),
        event(EventType.COMPLETION, "answered", 2),
    )
    for seconds in (30, TIMEOUT_SECONDS - 1):
        drivers.accept(heartbeat(seconds))
        assert drivers.found() == []
    for seconds in (TIMEOUT_SECONDS + 1, TIMEOUT_SECONDS + 120, 7_200):
        drivers.accept(heartbeat(seconds))
        assert drivers.found() == [(at(0), {"account": "a"}, {"model": "m", "api_key": "k"})]
    with psycopg.connect(drivers.database) as connection:
        assert connection.execute("SELECT count(*) FROM pattern_matches").fetchone() == (1,)


def test_without_heartbeats_nothing_is_found_however_often_both_look(drivers: Drivers) -> None:
    drivers.accept(event(EventType.REQUEST, "lost", 0))
    for _ in range(3):
        drivers.accept()
    assert drivers.found() == []
