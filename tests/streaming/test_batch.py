"""The cut of a micro-batch: only what is new, nothing missing before it, and no code compiled anew for each batch."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.runtime.batch import LsnRange, Seen, broken_edges, contiguous, seen_in
from jobs.runtime.delta.position import row_hash
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.errors import Refused
from jobs.runtime.new_rows import new_records, new_rows
from jobs.streams import Table


@pytest.fixture
def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(pa.table({"lsn": list(range(1, 11)), "tokens": [1] * 10}))


def total(rows: DataFrame) -> DataFrame:
    return rows.groupBy().agg(F.sum("tokens").alias("tokens"))


def kept(rows: DataFrame) -> DataFrame:
    return rows.withColumn("tokens", F.col("tokens") + 0)


def test_rows_below_the_position_are_cut(table: DataFrame) -> None:
    summary, rows = new_rows(table, 8, "job", total)
    assert (summary.to_pylist(), rows) == ([{"tokens": 3}], LsnRange(8, 11))


def test_a_batch_that_is_known_is_empty(table: DataFrame) -> None:
    assert new_rows(table, 11, "job", total)[1] == LsnRange(11, 11)


def test_rows_missing_before_the_batch_are_refused(table: DataFrame) -> None:
    with pytest.raises(Refused, match="would lose rows"):
        new_rows(table.where("lsn > 3"), 3, "job", total)


@pytest.mark.parametrize(
    "lsns",
    [
        pytest.param([1, 2, 2, 4], id="one row twice and one missing"),
        pytest.param([1, 3, 3, 3, 5], id="one row three times and two missing"),
        pytest.param([1, 2, 2, 5, 5, 6, 7], id="two twice and two missing: with the sum of 1 to 7"),
        pytest.param([1, 2, 2, 3], id="one row twice"),
    ],
)
def test_duplicate_rows_do_not_hide_missing_ones(spark: SparkSession, lsns: list[int]) -> None:
    with pytest.raises(Refused, match="would lose rows"):
        new_rows(spark.createDataFrame(pa.table({"lsn": lsns, "tokens": lsns})), 1, "job", total)
    with pytest.raises(Refused, match="would lose rows"):
        contiguous(1, seen_in(pa.chunked_array([lsns])), "job")


def test_differential_the_proof_of_a_batch_agrees_with_a_scan_of_every_lsn(spark: SparkSession) -> None:
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

    summary, rows = new_rows(table, 1, "job", counted_twice)
    assert (summary.to_pylist(), rows) == ([{"tokens": 10}, {"tokens": 10}], LsnRange(1, 11))


def test_the_columns_of_the_last_row_come_with_the_range(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    columns = {"lsn": [5, 7, 6], "tokens": [1, 2, 3], "topic": ["a", None, "c"], "logged_at": [at, at, at]}
    batch = spark.createDataFrame(pa.table(columns))
    _, rows = new_rows(batch, 5, "job", total, ("topic", "logged_at"))
    assert rows.last == {"topic": None, "logged_at": microseconds_of(at)}


def test_the_next_batch_needs_no_new_code(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME
    counts = []
    for first in (1, 11, 2**40):
        batch = spark.createDataFrame(pa.table({"lsn": list(range(first, first + 10)), "tokens": [1] * 10}))
        assert new_rows(batch, first, "job", total)[1] == LsnRange(first, first + 10)
        counts.append(compiled().getCount())
    assert counts[1:] == [counts[0]] * 2


def test_differential_rows_and_their_aggregate_have_one_range_and_one_last_row(
    spark: SparkSession,
) -> None:
    def read(batch: DataFrame, position: int, *, keeps_rows: bool) -> tuple[list[int], LsnRange, int | None] | None:
        build = kept if keeps_rows else total
        try:
            found, rows = new_rows(batch, position, "job", build, columns, keeps_rows=keeps_rows)
        except Refused:
            return None
        tokens = [tokens or 0 for tokens in found["tokens"].to_pylist()]
        return [sum(tokens)], rows, row_hash(Table.JOURNAL, rows.next - 1, rows.last) if rows.records else None

    chance, columns = random.Random(7), ("topic", "partition", "offset", "logged_at")
    found = []
    for _ in range(12):
        first = chance.randint(1, 4)
        lsns = chance.choice([[*range(first, first + 4)], chance.choices(range(first, first + 4), k=3)])
        chance.shuffle(lsns)
        logged_at = [datetime(2026, 1, 1, 0, 0, 0, lsn, UTC) for lsn in lsns]
        others = {"topic": [str(lsn) for lsn in lsns], "partition": lsns, "offset": lsns, "logged_at": logged_at}
        batch = spark.createDataFrame(pa.table({"lsn": lsns, "tokens": lsns, **others}))
        position = chance.randint(1, 6)
        found.append(read(batch, position, keeps_rows=True))
        assert found[-1] == read(batch, position, keeps_rows=False), (lsns, position)
    assert None in found
    assert any(result is not None and result[1].records for result in found)


def test_records_below_the_next_offset_of_their_partition_are_cut() -> None:
    places = [(partition, offset) for partition in range(3) for offset in range(4)]
    batch = pa.table({"partition": [p for p, _ in places], "offset": [o for _, o in places]})
    batch = pa.concat_tables([batch.append_column("topic", pa.array([name] * 12)) for name in ("a", "b", "c")])
    of_a: dict[int, int]
    for of_a in ({}, {0: 4, 1: 2}):
        positions = {"a": of_a, "b": {0: 1}}
        expected = [(p, o, t) for t in "abc" for p, o in places if o >= positions.get(t, {}).get(p, 0)]
        assert new_records(pl.DataFrame(batch), positions).rows() == expected
