"""The cut of a micro-batch: only what is new, nothing missing before it, and no code compiled anew for each batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.batch import LsnRange, reduce_once
from jobs.runtime.errors import Refused


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


def test_the_next_batch_needs_no_new_code(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME
    counts = []
    for first in (1, 11, 2**40):
        batch = spark.createDataFrame(pa.table({"lsn": list(range(first, first + 10)), "tokens": [1] * 10}))
        assert reduce_once(batch, first, "job", total)[1] == LsnRange(first, first + 10)
        counts.append(compiled().getCount())
    assert counts[1:] == [counts[0]] * 2
