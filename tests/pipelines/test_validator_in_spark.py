"""Spark's Python workers give what the validator itself gives, of a batch frame as of a stream."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.handover import FILES, Left, collected
from jobs.ingestion.pipeline import build
from jobs.runtime.delta.new_files import EXCHANGE, Exchanged, Folder
from jobs.runtime.kafka.headers import text_of
from jobs.runtime.kafka.protocol.log_records import LogRecord
from jobs.runtime.kafka.quarantine.scanned_records import as_frame
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS
from tests.corpus.contracts import GPU
from tests.corpus.documents import in_binary_mode, request
from tests.pipelines.ingestion import records_of

CONFIG = IngestionConfig(contracts=(GPU,))


def test_spark_workers_validate_the_corpus_as_the_validator_does(spark: SparkSession) -> None:
    records = records_of([document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)])
    found = build(spark.createDataFrame(records).repartition(3), CONFIG).toArrow()
    expected = pl.DataFrame(CONFIG.validator().validate(records))
    assert pl.DataFrame(found).sort("offset").equals(expected.sort("offset"))


def test_rows_that_workers_spill_equal_those_of_spark_and_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    records = spark.createDataFrame(records_of([document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)]))
    given = build(records.repartition(3), CONFIG).toArrow()
    left = build(records.repartition(3), CONFIG, tmp_path).toArrow()
    assert left.schema.names == FILES.names
    assert len([*tmp_path.iterdir()]) == len(left)
    found = collected(left, CONFIG.validator().schema)
    assert found.schema.equals(given.schema)
    assert found.sort_by("offset").equals(given.sort_by("offset"))
    assert not [*tmp_path.iterdir()]


def test_rows_that_executors_leave_beside_the_journal_equal_those_of_spark_and_are_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    beside = Exchanged(Folder(str(tmp_path), None), 7)
    records = spark.createDataFrame(records_of([document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)]))
    given = build(records.repartition(3), CONFIG).toArrow()
    left = build(records.repartition(3), CONFIG, beside).toArrow()
    assert left.schema.names == FILES.names
    assert len([*(tmp_path / EXCHANGE).iterdir()]) == 2 * len(left) > 2, "each with its summary"
    found = collected(left, CONFIG.validator().schema, beside)
    assert found.schema.equals(given.schema)
    assert found.sort_by("offset").equals(given.sort_by("offset"))
    assert Left(left, beside).rows == len(given)
    assert (
        Left(left, beside)
        .summaries()
        .sort("offset")["identity"]
        .equals(pl.DataFrame(given).sort("offset")["identity"], null_equal=True)
    )
    Left(left, beside).remove()
    assert not [*(tmp_path / EXCHANGE).iterdir()]
    build(records, CONFIG, beside).toArrow()
    assert [*(tmp_path / EXCHANGE).iterdir()], "of a driver that was killed"
    Exchanged(beside.folder, 6).clear()
    assert [*(tmp_path / EXCHANGE).iterdir()], "its predecessor, a zombie by now, removes nothing of it"
    Exchanged(beside.folder, 8).clear()
    assert not [*(tmp_path / EXCHANGE).iterdir()]


def test_no_more_tasks_validate_than_run_at_once(spark: SparkSession) -> None:
    records = spark.createDataFrame(records_of([b"{}"])).repartition(7)
    assert build(records, CONFIG).rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2


def test_no_records_leave_no_file(spark: SparkSession, tmp_path: Path) -> None:
    found = collected(
        build(spark.createDataFrame(records_of([])), CONFIG, tmp_path).toArrow(), CONFIG.validator().schema
    )
    assert found.num_rows == 0
    assert found.schema.equals(CONFIG.validator().schema)
    assert not [*tmp_path.iterdir()]


def test_no_records_have_the_columns_of_records(spark: SparkSession) -> None:
    found = build(spark.createDataFrame(records_of([])), CONFIG).toArrow()
    assert found.num_rows == 0
    assert found.schema.equals(CONFIG.validator().schema)


def test_a_record_that_is_read_with_care_keeps_the_mark_of_the_dead_letter_that_it_replays(spark: SparkSession) -> None:
    marks = [b"events/0/17", None, b"no mark"]
    records = [LogRecord(0, at, 1_000, True, 3, b"k", b"{}", replay_mark=mark) for at, mark in enumerate(marks)]
    found = build(as_frame(spark, records, "events"), CONFIG).toArrow().sort_by("offset")
    assert found["replay_mark"].to_pylist() == ["events/0/17", None, None]


def test_a_record_that_is_read_with_care_is_read_in_binary_mode(spark: SparkSession) -> None:
    headers, value = in_binary_mode(request())
    records = [LogRecord(0, 0, 1_000, True, 3, b"k", value, headers=text_of(headers))]
    [found] = build(as_frame(spark, records, "events"), CONFIG).toArrow().to_pylist()
    assert (found["reason"], found["id"], found["value"]) == (None, request()["id"], value)
