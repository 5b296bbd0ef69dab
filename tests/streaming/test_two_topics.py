"""A real driver on two topics of a real broker. A configuration cannot name them yet, so the test does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from jobs.audit.compare.conservation import consumed_ranges, count_rows
from jobs.ingestion.config import IngestionConfig
from jobs.runtime.delta.table import FRONTIER
from jobs.runtime.kafka.quarantine.quarantine_start import QuarantineStart
from jobs.runtime.kafka.topic import list_partitions
from jobs.streams import Table
from monitoring import metrics
from monitoring.instruments import REGISTRY
from tests.streaming.brokers import running_broker
from tests.streaming.drivers import running_ingestion
from tests.streaming.topics import Topic, every_row

_LEFT = """
INSERT INTO attempts (job, topic, epoch, positions, records, careful_records, failed_alone)
VALUES ('ingestion', %s, 1, %s, 500, 0, 0)
"""


def rows_of(tables: Path) -> pl.DataFrame:
    """Events of the test by topic, offset, id and what became of them."""
    if not DeltaTable.is_deltatable(f"{tables}/{Table.JOURNAL}"):
        return pl.DataFrame(schema={"topic": pl.String, "id": pl.String, "disposition": pl.String})
    rows = every_row(tables).filter(pl.col("source") == "s")
    return rows.select("topic", "partition", "offset", "id", "disposition")


def positions_of(broker: str, tables: Path, *topics: Topic) -> dict[str, dict[int, int]]:
    """The next offset by topic and partition, as the journal has it."""
    described = list_partitions(AdminClient({"bootstrap.servers": broker}), [topic.name for topic in topics])
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), covered in consumed_ranges(DeltaTable(f"{tables}/{Table.JOURNAL}"), described).items():
        found.setdefault(topic, {})[partition] = covered.next_offset
    return found


def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose records are looked at before Spark reads any, from now on."""
    found, validated = list[str](), QuarantineStart._validated

    def watched(start: Any, *args: Any) -> Any:
        found.append(start._topic)
        return validated(start, *args)

    monkeypatch.setattr(QuarantineStart, "_validated", watched)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.mark.long
def test_a_driver_and_its_successor_read_two_topics_as_one_stream(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Topic.make(broker, partitions=2), Topic.make(broker)
    other.occurred_at = one.occurred_at
    monkeypatch.setattr(IngestionConfig, "topics", (one.name, other.name))
    one.append("a", "b")
    one.append("c", partition=1)
    # At the places of the first topic, and one that is the same event.
    other.append("a", "d")

    with running_ingestion(spark, database, tmp_path, one, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 5, "five events of both topics")
        other.append("e")
        one.append("c")
        until(lambda: len(rows_of(tmp_path)) == 7, "those that came while it ran")

    # As a driver leaves it that was killed while it read: its successor looks at the records of each topic first.
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM attempts")
        for topic, positions in positions_of(broker, tmp_path, one, other).items():
            at = {str(partition): offset for partition, offset in positions.items()}
            connection.execute(_LEFT, [topic, Jsonb(at)])
    looked_at = looks(monkeypatch)
    one.append("f")
    other.append("g", "f")
    with running_ingestion(spark, database, tmp_path, one, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 10, "those that came between the drivers")
        assert [name for name, _ in groupby(looked_at)] == [one.name, other.name]
        assert REGISTRY.get_sample_value(metrics.RESIDUAL.name) in (None, 0.0)

    rows = rows_of(tmp_path)
    first_of_each = rows.filter(pl.col("disposition") == "accepted")
    assert sorted(first_of_each["id"]) == list("abcdefg")
    assert rows.filter(pl.col("disposition") == "duplicate")["id"].sort().to_list() == ["a", "c", "f"]
    assert rows.select("topic", "partition", "offset").is_unique().all()

    journal = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    described = list_partitions(AdminClient({"bootstrap.servers": broker}), [one.name, other.name])
    ranges, counted = consumed_ranges(journal, described), count_rows(journal)
    assert {place: covered.records for place, covered in ranges.items()} == {
        place: sum(count for key, count in counted.items() if key[:2] == place) for place in ranges
    }
    assert len(ranges) == 3
    # Every partition has heard of time, and F is what the slowest has reached.
    received = every_row(tmp_path).filter(pl.col("topic").is_in([one.name, other.name]))
    latest = received.group_by("topic", "partition").agg(pl.col("received_at").max())
    assert len(latest) == 3
    micros = journal.transaction_version(FRONTIER)
    assert latest["received_at"].dt.epoch("us").min() == micros
    beats = every_row(tmp_path).filter(pl.col("source") == "weir", pl.col("topic").is_in([one.name, other.name]))
    assert set(beats["disposition"]) == {"accepted"}
