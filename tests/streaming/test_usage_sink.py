"""joins with real tables: the outcome of a request is a fact of the journal, whatever the cuts and restarts."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB, UsageSink
from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.job import Context
from jobs.runtime.ownership import Ownership
from jobs.streams import CatalogTopic, EventType, Table
from tests.streaming.journals import Journal, change, environment, event, heartbeat

REQUEST, COMPLETION, USAGE = EventType.REQUEST, EventType.COMPLETION, EventType.USAGE
CATALOG = [
    change(CatalogTopic.ACCOUNTS, 0, account="a", name="A", plan="p", currency="EUR", timezone="UTC"),
    change(
        CatalogTopic.PRICES,
        0,
        plan="p",
        model="m",
        meter="input_tokens",
        currency="EUR",
        unit_price="0.000000000003",
        effective_from="2025-01-01T00:00:00Z",
    ),
]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def driver(spark: SparkSession, database: str, journal: Journal) -> UsageSink:
    where = environment(database, Path(journal.tables))
    ownership = Ownership.take(JOB.name, database, {})
    return UsageSink(Context(JoinsConfig(), where, spark, ownership))


def usage(journal: Journal) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table()).sort("lsn")


def facts(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Everything but the order of record, which is the batch's."""
    return sorted(rows.drop("lsn", "log_date", "logged_at").rows(), key=repr)


def test_requests_end_matched_abandoned_orphaned_or_superseded_and_are_priced(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    journal.commit(CATALOG)
    journal.commit([event(REQUEST, "pair", 1), event(REQUEST, "alone", 2), event(COMPLETION, "nobody", 3)])
    journal.commit([event(COMPLETION, "pair", 4), event(COMPLETION, "pair", 5), event(USAGE, "both", 6)])
    journal.commit([heartbeat(200)])
    sink = driver(spark, database, journal)
    sink.process(journal.read(spark, JOB.columns))
    rows = {(row["request_id"], row["outcome"]): row for row in usage(journal).iter_rows(named=True)}
    assert set(rows) == {
        ("pair", "matched"),
        ("pair", "superseded"),
        ("alone", "abandoned"),
        ("nobody", "orphaned"),
        ("both", "matched"),
    }
    assert rows["pair", "matched"]["input_tokens_amount"] == Decimal("0.000000000030")
    assert rows["alone", "abandoned"]["requests"] == 1
    assert rows["nobody", "orphaned"]["input_tokens_amount"] is None
    assert sink.status() == {"waiting": 0, "oldest_waiting_lsn": None}


def _random_events(seed: int) -> list[list[dict[str, Any]]]:
    chance = random.Random(seed)
    second, commits = 0.0, [CATALOG]
    for _ in range(8):
        rows = []
        for _ in range(chance.randrange(1, 9)):
            second += chance.choice([0, 1, 20, 70])
            kind = chance.choice([REQUEST, REQUEST, COMPLETION, COMPLETION, USAGE])
            rows.append(event(kind, f"r{chance.randrange(6)}", second))
        commits.append(rows)
    return [*commits, [heartbeat(second + 1000)]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_differential_any_cut_and_any_restart_gives_the_usage_of_one_batch(
    spark: SparkSession, database: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    whole, cut = Journal(tmp_path / "whole"), Journal(tmp_path / "cut")
    commits = _random_events(seed)
    for rows in commits:
        whole.commit(rows)
    driver(spark, database, whole).process(whole.read(spark, JOB.columns))
    sink = driver(spark, database, cut)
    for rows in commits:
        cut.commit(rows)
        if chance.random() < 0.3:
            continue
        if chance.random() < 0.4:
            sink = driver(spark, database, cut)
        first = max(1, sink.position() - chance.randrange(0, 3))
        sink.process(cut.read(spark, JOB.columns, first))
    sink.process(cut.read(spark, JOB.columns))
    assert facts(usage(cut)) == facts(usage(whole))
    assert usage(cut)["lsn"].to_list() == list(range(1, len(usage(cut)) + 1))


def test_a_price_is_in_force_for_what_comes_after_it_in_the_journal(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    journal.commit([event(USAGE, "before", 1), *CATALOG, event(USAGE, "after", 2)])
    driver(spark, database, journal).process(journal.read(spark, JOB.columns))
    amounts = dict(usage(journal).select("request_id", "input_tokens_amount").iter_rows())
    assert amounts == {"before": None, "after": Decimal("0.000000000030")}


def test_a_gap_is_refused_and_a_replaced_driver_is_fenced(spark: SparkSession, database: str, journal: Journal) -> None:
    journal.commit([event(USAGE, "one", 1), event(USAGE, "two", 2)])
    old = driver(spark, database, journal)
    with pytest.raises(Refused, match="at lsn 1"):
        old.process(journal.read(spark, JOB.columns, first=2))
    new = driver(spark, database, journal)
    with pytest.raises(Fenced):
        old.process(journal.read(spark, JOB.columns))
    new.process(journal.read(spark, JOB.columns))
    assert usage(journal)["request_id"].to_list() == ["one", "two"]


def test_what_waits_is_carried_bounded_and_shown(spark: SparkSession, database: str, journal: Journal) -> None:
    sink = driver(spark, database, journal)
    waiting = [event(REQUEST, f"r{number}", number) for number in range(5)]
    journal.commit([heartbeat(0), *waiting])
    sink.process(journal.read(spark, JOB.columns))
    assert sink.status() == {"waiting": 5, "oldest_waiting_lsn": 2}
    journal.commit([heartbeat(122.5)])
    sink = driver(spark, database, journal)
    sink.process(journal.read(spark, JOB.columns))
    assert usage(journal).select("request_id", "outcome").rows() == [(f"r{n}", "abandoned") for n in range(3)]
    assert sink.status() == {"waiting": 2, "oldest_waiting_lsn": 5}
