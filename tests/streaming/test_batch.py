"""The cut of a micro-batch: only what is new, nothing missing before it, and no code compiled anew for each batch."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.batch import LsnRange, Seen, broken_edges, contiguous, seen_in
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.errors import Refused
from jobs.runtime.new_rows import reduce_once


@pytest.fixture
def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(pa.table({"lsn": list(range(1, 11)), "tokens": [1] * 10}))


def total(rows: DataFrame) -> DataFrame:
    return rows.groupBy().agg(F.sum("tokens").alias("tokens"))


def test_rows_below_the_position_are_cut(table: DataFrame) -> None:
    summary, rows = reduce_once(table, 8, "job", total)
    assert (summary.to_pylist(), rows) == ([{"tokens": 3}], LsnRange(8, 11))


def test_a_batch_that_is_known_is_empty(table: DataFrame) -> None:
    assert reduce_once(table, 11, "job", total)[1] == LsnRange(11, 11)


def test_rows_missing_before_the_batch_are_refused(table: DataFrame) -> None:
    with pytest.raises(Refused, match="would lose rows"):
        reduce_once(table.where("lsn > 3"), 3, "job", total)


@pytest.mark.parametrize(
    "lsns",
    [
        pytest.param([1, 2, 2, 4], id="one row twice and one missing"),
        pytest.param([1, 3, 3, 3, 5], id="one row three times and two missing"),
        pytest.param([1, 2, 2, 5, 5, 6, 7], id="two twice and two missing: with the sum of 1 to 7"),
        pytest.param([1, 2, 2, 3], id="one row twice"),
    ],
)
def test_rows_that_are_there_twice_do_not_hide_those_that_are_missing(spark: SparkSession, lsns: list[int]) -> None:
    with pytest.raises(Refused, match="would lose rows"):
        reduce_once(spark.createDataFrame(pa.table({"lsn": lsns, "tokens": lsns})), 1, "job", total)
    with pytest.raises(Refused, match="would lose rows"):
        contiguous(1, seen_in(pa.chunked_array([lsns])), "job")


def test_differential_the_proof_of_a_batch_agrees_with_a_look_at_every_lsn(spark: SparkSession) -> None:
    chance = random.Random(12)
    batches = [sorted(chance.choices(range(1, 9), k=chance.randrange(1, 9))) for _ in range(2000)]
    batches += [[*range(first, first + n)] for first in range(1, 4) for n in range(1, 6)]
    rows = [(number, lsn) for number, lsns in enumerate(batches) for lsn in lsns]
    table = spark.createDataFrame(pa.table({"batch": [n for n, _ in rows], "lsn": [lsn for _, lsn in rows]}))
    lsn = F.col("lsn")
    proofs = table.groupBy("batch").agg(F.count("*"), F.min(lsn), F.max(lsn), broken_edges(lsn) == 0).collect()
    for number, count, lowest, highest, is_chain in proofs:
        seen = Seen(count, lowest, highest, is_chain)
        whole = batches[number] == [*range(lowest, highest + 1)]
        assert seen.proves(lowest) == whole
        assert seen_in(pa.chunked_array([batches[number]])).proves(lowest) == whole
    assert len(proofs) == len(batches)


def test_a_batch_whose_rows_spark_counted_twice_is_not_refused(table: DataFrame) -> None:
    def counted_twice(rows: DataFrame) -> DataFrame:
        return total(rows).unionAll(total(rows))

    summary, rows = reduce_once(table, 1, "job", counted_twice)
    assert (summary.to_pylist(), rows) == ([{"tokens": 10}, {"tokens": 10}], LsnRange(1, 11))


def test_the_columns_of_the_last_row_come_with_the_range(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    columns = {"lsn": [5, 7, 6], "tokens": [1, 2, 3], "topic": ["a", None, "c"], "logged_at": [at, at, at]}
    batch = spark.createDataFrame(pa.table(columns))
    _, rows = reduce_once(batch, 5, "job", total, ("topic", "logged_at"))
    assert rows.last == {"topic": None, "logged_at": microseconds_of(at)}


def test_the_next_batch_needs_no_new_code(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME
    counts = []
    for first in (1, 11, 2**40):
        batch = spark.createDataFrame(pa.table({"lsn": list(range(first, first + 10)), "tokens": [1] * 10}))
        assert reduce_once(batch, first, "job", total)[1] == LsnRange(first, first + 10)
        counts.append(compiled().getCount())
    assert counts[1:] == [counts[0]] * 2
