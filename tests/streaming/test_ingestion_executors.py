"""ingestion with executors: whatever becomes of the attempts of a task, in either pass, each record has one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.ingestion.sink import JournalSink
from jobs.runtime.delta.new_files import EXCHANGE, Exchanged, Folder
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.spark import has_executors
from jobs.streams import Table
from tests.streaming.brokers import running_broker
from tests.streaming.drivers import running_ingestion
from tests.streaming.executors import session_with_executors
from tests.streaming.topics import Topic, every_row

RECORDS = 2_500
"""More than a driver reads itself."""
KINDS = ("validated", "summary", "log_date")


@dataclass(frozen=True)
class Failing(Folder):
    """A folder whose first file of each kind is there when its task fails."""

    def put(self, path: str, data: pa.Buffer) -> None:
        super().put(path, data)
        for kind in KINDS:
            if kind in path:
                with Path(f"{self.path}.failed-{kind}").open("a+b") as noted:
                    if noted.tell() == 0:
                        noted.write(b"once")
                        raise ValueError("the task ends after it has left its file")


@pytest.fixture
def executors(jars: Path, tmp_path: Path) -> Iterator[SparkSession]:
    with session_with_executors(jars, tmp_path) as session:
        yield session


@pytest.mark.long
def test_an_attempt_that_left_its_file_and_failed_doubles_no_record(
    executors: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_executors(executors)
    empty, beside = TopicSource._empty_place, JournalSink._beside

    def failing(place: Path | Exchanged) -> Exchanged:
        assert isinstance(place, Exchanged)
        return Exchanged(Failing(place.folder.path, place.folder.options), place.epoch)

    monkeypatch.setattr(TopicSource, "_empty_place", lambda source: failing(empty(source)))
    monkeypatch.setattr(JournalSink, "_beside", lambda sink: failing(beside(sink)))
    tables = tmp_path / "tables"
    left = tables / Table.JOURNAL / EXCHANGE
    left.mkdir(parents=True)
    (left / "validated-of-an-earlier-release.arrow").write_bytes(b"half")
    with running_broker(tmp_path / "kafka") as broker:
        topic = Topic.make(broker, partitions=2)
        for partition in (0, 1):
            ids = [f"{partition}.{n}" for n in range(RECORDS // 2)]
            topic.append(*ids[:-2], partition=partition)
            # A record of two events is the driver's, between those of tasks.
            two = b"[" + b",".join(topic.event(name) for name in ids[-2:]) + b"]"
            topic.producer.produce(topic.name, two, b"a", partition=partition)
            topic.producer.flush(30)

        def rows() -> pl.DataFrame:
            if not DeltaTable.is_deltatable(f"{tables}/{Table.JOURNAL}"):
                return pl.DataFrame(schema={"id": pl.String, "disposition": pl.String, "source": pl.String})
            return every_row(tables).filter(pl.col("source") == "s")

        with running_ingestion(executors, database, tables, topic, driver_rows=1) as until:
            until(lambda: len(rows()) >= RECORDS, "all records")
        assert {path.name for path in tables.glob("*.failed-*")} == {f"{Table.JOURNAL}.failed-{kind}" for kind in KINDS}
        found = rows()
        assert set(found["disposition"]) == {"accepted"}
        assert len(found) == found["id"].n_unique() == RECORDS
        assert sorted(found.filter(pl.col("element") > 0)["id"]) == [
            f"{p}.{RECORDS // 2 - n}" for p in (0, 1) for n in (2, 1)
        ]
