"""A real driver on two topics of a real broker."""

from __future__ import annotations

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
from jobs.ingestion.topic_removals import check_removal, store_removal
from jobs.runtime.delta.table import FRONTIER
from jobs.runtime.errors import Refused
from jobs.runtime.kafka.quarantine.quarantine_start import QuarantineStart
from jobs.runtime.kafka.topic import list_partitions
from jobs.streams import Table
from monitoring import metrics
from monitoring.instruments import REGISTRY
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


def several(*names: str, **types: list[str]) -> list[dict[str, Any]]:
    """The setting `events` of these topics."""
    return [{"topic": name, "types": types.get(name, [])} for name in names]


def lags(database: str) -> list[tuple[str, int, float | None]]:
    """What ingestion has reported of each topic."""
    with psycopg.connect(database) as connection:
        [(progress,)] = connection.execute("SELECT progress FROM jobs WHERE job = 'ingestion'").fetchall()
    return [tuple(lag.values()) for lag in progress.get("topics", ())]


def kept_seconds(database: str) -> float | None:
    """For how long Kafka keeps events, by what ingestion has reported."""
    with psycopg.connect(database) as connection:
        [(progress,)] = connection.execute("SELECT progress FROM jobs WHERE job = 'ingestion'").fetchall()
    found: float | None = progress["retention"]["seconds"]
    return found


@pytest.mark.long
def test_a_driver_and_its_successor_read_two_topics_as_one_stream(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Topic.make(broker, partitions=2, retention_ms="7200000")
    other = Topic.make(broker, retention_ms="86400000")
    other.occurred_at = one.occurred_at
    events = several(one.name, other.name)
    one.append("a", "b")
    one.append("c", partition=1)
    # At the places of the first topic, and one that is the same event.
    other.append("a", "d")

    with running_ingestion(spark, database, tmp_path, one, events=events, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 5, "five events of both topics")
        other.append("e")
        one.append("c")
        until(lambda: len(rows_of(tmp_path)) == 7, "those that came while it ran")
        until(
            lambda: {topic: behind for topic, behind, _ in lags(database)} == {one.name: 0, other.name: 0},
            "the report that each topic is read",
        )
        assert kept_seconds(database) == 7_200, "the shortest of both, by which the API refuses events"

    # As a driver leaves it that was killed while it read: its successor looks at the records of each topic first.
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM attempts")
        for topic, positions in positions_of(broker, tmp_path, one, other).items():
            at = {str(partition): offset for partition, offset in positions.items()}
            connection.execute(_LEFT, [topic, Jsonb(at)])
    looked_at = looks(monkeypatch)
    one.append("f")
    other.append("g", "f")
    with running_ingestion(spark, database, tmp_path, one, events=events, heartbeat_interval_seconds=1) as until:
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


@pytest.mark.long
def test_a_topic_ends_only_when_it_was_removed_and_is_read_on_when_it_is_listed_again(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    one, other = Topic.make(broker), Topic.make(broker)
    other.occurred_at = one.occurred_at
    both, alone = several(one.name, other.name), several(one.name)
    one.append("a")
    other.append("a", "b")
    with running_ingestion(spark, database, tmp_path, one, events=both, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 3, "both topics")

    with (
        pytest.raises(Refused, match=f"weir topics remove {other.name}"),
        running_ingestion(spark, database, tmp_path, one, events=alone),
    ):
        pass

    with psycopg.connect(database) as connection:
        number = store_removal(connection.cursor(), other.name, "moved", "me", unread=0, waiting=0)
        assert check_removal(connection.cursor(), number, unread=0, waiting=0)
    one.append("c")
    with running_ingestion(spark, database, tmp_path, one, events=alone, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 4, "the one that is left")
        frontier = DeltaTable(f"{tmp_path}/{Table.JOURNAL}").transaction_version(FRONTIER)
        until(lambda: _frontier(tmp_path) > (frontier or 0), "F, which goes on without it")
        assert REGISTRY.get_sample_value(metrics.RESIDUAL.name) in (None, 0.0)
    with psycopg.connect(database) as connection:
        [(ended, withdrawn)] = connection.execute("SELECT ended_at, withdrawn_at FROM topic_removals").fetchall()
    assert ended is not None
    assert withdrawn is None
    [entry] = [text for text in every_row(tmp_path)["rules"].drop_nulls() if "removed_topics" in text]
    assert other.name in entry

    # What came meanwhile is read when the topic is, as received then: nothing of before F.
    other.append("d")
    before = _frontier(tmp_path)
    with running_ingestion(spark, database, tmp_path, one, events=both, heartbeat_interval_seconds=1) as until:
        until(lambda: len(rows_of(tmp_path)) == 5, "what was written while it was not read")
        assert REGISTRY.get_sample_value(metrics.RESIDUAL.name) in (None, 0.0)
    again = every_row(tmp_path).filter(pl.col("id") == "d")
    assert again["disposition"].to_list() == ["accepted"]
    assert (again["received_at"].dt.epoch("us") >= before).all()
    assert sorted(rows_of(tmp_path).filter(pl.col("disposition") == "accepted")["id"]) == list("abcd")


def _frontier(tables: Path) -> int:
    return DeltaTable(f"{tables}/{Table.JOURNAL}").transaction_version(FRONTIER) or 0
