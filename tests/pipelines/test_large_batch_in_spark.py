"""Spark's workers leave summaries of what they validate, and write the journal's files, as the driver alone does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.ingestion.pipeline import build
from jobs.runtime.kafka.records import RECORDS
from tests.rules.test_large_batches_journaled import CONFIG, Driver, assert_same, exchanged, forgotten, universe


def test_workers_write_a_large_batch_as_the_driver_alone_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = forgotten("a", "ann")
    alone, large = (Driver(tmp_path / str(size), monkeypatch, size, people=people, range_rows=30) for size in (None, 1))
    monkeypatch.setattr(large.sink, "_spark", spark)
    for records in universe(10)[:2]:
        alone.progress.append(alone.take(records))
        frame = spark.createDataFrame(pa.Table.from_pylist(records, RECORDS)).repartition(2, "partition")
        ordered = frame.sortWithinPartitions("partition", "offset")
        large.progress.append(large.sink.process(build(ordered, CONFIG, large.sink._beside())))
    assert large.large == 2
    assert_same(large, alone)
    assert not exchanged(large)
