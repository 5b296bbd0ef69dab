"""Method: usage cut anywhere, by drivers with other rules and between failures, compared with the table `rules`.

Windows and stragglers are to the last digit what each row makes of the rules that held at its lsn; and what was shown
closed is never shown otherwise, nor changed without a straggler.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cli.reading import read_only
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.rules import following
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.rules_table import stored_history
from jobs.runtime.postgres.sink import PostgresSink
from jobs.settings.meters import DEFAULT_METERS
from jobs.streams import USAGE, Table
from metering.meters import Meter
from metering.vocabulary import LatePolicy
from tests.pipelines.billing import NOON, billed_by_history, stored, usage_row
from tests.pipelines.test_billing import random_row
from tests.streaming.journals import environment

FINAL = {"closed", "corrected"}
LOGGED = {"log_date": datetime(2026, 3, 1, tzinfo=UTC).date(), "logged_at": datetime(2026, 3, 1, tzinfo=UTC)}
SHORT = BillingConfig(grace_seconds=120)
LONG = BillingConfig(grace_seconds=600)
OWN = BillingConfig(
    grace_seconds=300,
    meters={
        **DEFAULT_METERS,
        "input_tokens": DEFAULT_METERS["input_tokens"].model_copy(update={"grace_seconds": 900}),
        "output_tokens": DEFAULT_METERS["output_tokens"].model_copy(
            update={"grace_seconds": 0, "late_policy": LatePolicy.DROP}
        ),
    },
)
FEWER = BillingConfig(
    grace_seconds=240, meters={"requests": DEFAULT_METERS["requests"].model_copy(update={"grace_seconds": 480})}
)
DROP = BillingConfig(grace_seconds=120, late_policy=dict.fromkeys(Meter, LatePolicy.DROP))


class Stage:
    """Usage of 200 rows, and drivers of billing that fold it."""

    def __init__(self, spark: SparkSession, database: str, tables: Path) -> None:
        chance = random.Random(5)
        self.rows = [random_row(chance, lsn) for lsn in range(1, 201)]
        self.database = database
        self.driver_rows: int | None = None
        self._spark, self._tables = spark, tables
        self._usage = DeltaWriter(str(tables), Table.USAGE, "joins", 1)
        self._commit(self.rows, {})

    def _commit(self, rows: list[dict[str, Any]], transactions: dict[str, int]) -> None:
        placed = [{**LOGGED, "request_lsn": row["lsn"], **row} for row in rows]
        after = {LSN: self._usage.next_lsn + len(placed)}
        self._usage.commit(pa.Table.from_pylist(placed, schema=USAGE), {**after, **transactions})

    def grow(self, rows: list[dict[str, Any]], frontier: datetime) -> None:
        """More usage, after which all that was received before `frontier` is there."""
        self.rows += rows
        self._commit(rows, {FRONTIER: microseconds_of(frontier)})

    def fold_all(self, driver: PostgresSink) -> None:
        self.fold(driver, len(self.rows) + 1)
        for _ in range(2):  # The first look finds out that nothing more is there.
            driver.advance()

    def driver(self, config: BillingConfig) -> PostgresSink:
        config = config.model_copy(update={"driver_rows": self.driver_rows})
        ownership = Ownership.take(JOB.name, self.database, config.model_dump(mode="json"))
        return PostgresSink(
            JOB,
            Context(
                config, environment(self.database, self._tables), self._spark, ownership, MachineClock(), Denials()
            ),
        )

    def fold(self, driver: PostgresSink, end: int) -> None:
        table, columns = DeltaTable(f"{self._tables}/{Table.USAGE}"), JOB.columns(JOB.config())
        found = pieces_of_lsns(table, columns, driver.position(), end)
        if driver.driver_rows is None:
            usage = self._spark.read.parquet(*table.file_uris())
            driver.process(usage.where(f"lsn >= {driver.position()} AND lsn < {end}").select(*columns))
        else:
            driver.process(found.read() if end - driver.position() <= driver.driver_rows else found)


@contextmanager
def restored(database: str, driver: PostgresSink) -> Iterator[str]:
    """The database as it is now, as a backup that is restored in another place. Its driver is ended."""
    driver._ownership.close()
    server, name = urlsplit(database)._replace(path="/postgres").geturl(), f"restored_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {urlsplit(database).path[1:]}")
        try:
            yield urlsplit(database)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Stage:
    return Stage(spark, database, tmp_path)


def held(database: str) -> list[tuple[int, dict[str, Any]]]:
    with psycopg.connect(database) as connection:
        return [(held.first, dict(held.rules)) for held in stored_history(connection, "billing")]


@pytest.mark.parametrize(
    "driver_rows", [None, pytest.param(1, marks=pytest.mark.long), pytest.param(30, marks=pytest.mark.long)]
)
def test_oracle_the_recorded_rules_reproduce_the_bills(stage: Stage, database: str, driver_rows: int | None) -> None:
    """Also where Spark's workers add up each batch, or those of more than 30 rows."""
    stage.driver_rows = driver_rows
    stage.fold(stage.driver(SHORT), 41)
    stage.fold(stage.driver(SHORT), 61)
    assert held(database) == [(1, SHORT.deciding)]

    # A change that decided nothing, because its driver met another one or was killed in its first batch, never held.
    frozen = stage.driver(LONG)
    longer = stage.driver(DROP)
    with pytest.raises(Fenced, match=r"billing: epoch \d+ is no longer the newest"):
        stage.fold(frozen, 101)
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("ALTER TABLE batches ADD CONSTRAINT nothing_more CHECK (next_position < 62)")
        with pytest.raises(psycopg.errors.CheckViolation):
            stage.fold(longer, 101)
        other.execute("ALTER TABLE batches DROP CONSTRAINT nothing_more")
    assert held(database) == [(1, SHORT.deciding)]

    stage.fold(stage.driver(DROP), 121)
    stage.fold(stage.driver(LONG), 160)
    stage.fold(stage.driver(OWN), 180)
    stage.fold(stage.driver(FEWER), 190)
    stage.fold(stage.driver(SHORT), 201)
    fewer = following(OWN.deciding, FEWER.deciding)
    assert fewer != FEWER.deciding
    assert held(database) == [
        (1, SHORT.deciding),
        (61, DROP.deciding),
        (121, LONG.deciding),
        (160, OWN.deciding),
        (180, fewer),
        (190, SHORT.deciding),
    ]
    with psycopg.connect(database) as connection:
        found, expected = stored(connection), billed_by_history(stage.rows, stored_history(connection, "billing"))
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows
    assert {row["decision"] for row in found.stragglers.values()} == {"correct", "drop"}


def test_a_database_without_rules_records_those_of_its_next_batch(stage: Stage, database: str) -> None:
    stage.fold(stage.driver(SHORT), 31)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM rules")
    driver = stage.driver(SHORT)
    assert held(database) == []
    stage.fold(driver, 51)
    assert held(database) == [(31, SHORT.deciding)]


def test_the_driver_takes_fewer_rows_where_a_row_may_have_earlier_meters(stage: Stage, database: str) -> None:
    driver = stage.driver(SHORT)
    assert (driver.rows_at_once, driver.driver_rows, driver.task_rows) == (100_000, None, 0)
    stage.driver_rows = 1_000_000
    driver = stage.driver(SHORT)
    assert (driver.rows_at_once, driver.driver_rows, driver.task_rows) == (100_000, 100_000, 200_000)
    with psycopg.connect(database) as connection:
        for number in range(16):
            connection.execute("INSERT INTO meters VALUES (%s, 'call', null, null, false)", [f"of_before_{number}"])
    assert stage.driver(SHORT).driver_rows == 20_000
    stage.driver_rows = None
    assert stage.driver(SHORT).rows_at_once == 20_000


def states(database: str) -> dict[Any, Any]:
    """What `weir usage` shows of every minute and meter. Of all meters together it says closed where each is."""
    with read_only(database) as connection:
        each = list(usage_rows(connection, UsageQuery(group_by=(Key.METER,))))
        together = {row["window_start"]: row["state"] for row in usage_rows(connection, UsageQuery(group_by=()))}
    found = {(row["window_start"], row["meter"]): row["state"] for row in each}
    for (start, _), state in found.items():
        assert together[start] not in FINAL or state in FINAL
    return found


def arriving(chance: random.Random, first_lsn: int, since: datetime, rows: int) -> list[dict[str, Any]]:
    """Usage of the last 20 minutes, received at `since` or within a minute after."""
    received = [since + timedelta(seconds=chance.randint(0, 60)) for _ in range(rows)]
    aged = [timedelta(seconds=chance.randint(0, 1_200)) for _ in received]
    return [usage_row(lsn, at - age, age) for lsn, (at, age) in enumerate(zip(received, aged, strict=True), first_lsn)]


@pytest.mark.long
def test_oracle_a_closed_window_stays_closed_when_the_grace_changes(stage: Stage, database: str) -> None:
    chance, reached = random.Random(3), NOON + timedelta(minutes=30)
    driver = stage.driver(SHORT)
    stage.grow([], reached)
    stage.fold_all(driver)
    shown, was_open = states(database), 0
    for config, arrives in (
        (LONG, 20),
        (SHORT, 0),
        (LONG, 20),
        (LONG, 0),
        (LONG, 20),
        (DROP, 20),
        (SHORT, 0),
        (OWN, 20),
        (FEWER, 20),
        (OWN, 0),
        (FEWER, 0),
        (SHORT, 20),
        (LONG, 20),
    ):
        final = {key for key, state in shown.items() if state in FINAL}
        for started in (SHORT, config):  # The first ends before it decides anything.
            driver = stage.driver(started)
            now_final = {key for key, state in states(database).items() if state in FINAL}
            assert now_final >= final
            final = now_final
        stage.grow(arriving(chance, len(stage.rows) + 1, reached, arrives), reached + timedelta(minutes=1))
        reached += timedelta(minutes=1)
        stage.fold_all(driver)
        shown = states(database)
        assert {shown[key] for key in final} <= FINAL
        was_open += len(shown.keys() - final)
    assert was_open
    with psycopg.connect(database) as connection:
        history = stored_history(connection, "billing")
        found, expected = stored(connection), billed_by_history(stage.rows, history)
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows
    # Where no usage came nothing was decided by row, but what was shown closed is kept.
    assert [(held.first, held.rules["grace_seconds"]) for held in history] == [
        *((1, 120), (201, 600), (221, 600), (261, 120), (281, 300), (301, 240), (321, 120), (341, 600)),
    ]
    assert [held.closed_before.every is not None for held in history] == [False, *[True] * 7]
    assert any(held.closed_before.own for held in history)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_restored_database_bills_each_row_by_the_rules_of_its_time(stage: Stage, database: str, seed: int) -> None:
    """The rules that came after the backup are kept beside the tables; the driver's own hold for what is new.

    In the second case Spark's workers add up each batch, in which several rules decide.
    """
    stage.driver_rows = 1 if seed == 1 else None
    chance = random.Random(seed)
    before = stage.driver(SHORT)
    stage.fold(before, 41)
    with restored(database, before) as backup:
        stage.fold(stage.driver(LONG), 81)
        stage.fold(stage.driver(DROP), 121)
        stage.fold(stage.driver(OWN), 201)
        ends = sorted({*chance.sample(range(42, 200), 3), 201})
        stage.database = backup
        for end in ends[: chance.randint(1, 2)]:
            stage.fold(stage.driver(DROP), end)
        again = stage.driver(OWN)
        for end in [end for end in ends if end > again.position()]:
            stage.fold(again, end)
        assert held(backup) == held(database)
        stage.grow([{**random_row(chance, lsn), "lsn": lsn} for lsn in range(201, 221)], NOON)
        for each in (database, backup):
            stage.database = each
            stage.fold(stage.driver(FEWER), 221)
        assert [first for first, _ in held(backup)] == [1, 41, 81, 121, 201]
        assert held(backup) == held(database)
        with psycopg.connect(database) as whole, psycopg.connect(backup) as made_again:
            assert stored(made_again) == stored(whole)
