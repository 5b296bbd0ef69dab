"""What an application does, in small, so that Java can archive the classes it needs. Run by `laptop.class_archive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.spark import spark_session
from laptop.jars import connector_jars

DOCUMENT = '{"id": "1", "data": {"model": "m", "tokens": 3, "time": "2026-01-01T00:00:00Z"}}'
NO_BROKER = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.default.api.timeout.ms": "500",
    "kafka.request.timeout.ms": "400",
    "fetchOffset.numRetries": "1",
}
PARSED = "id string, data struct<model: string, tokens: bigint, time: timestamp>"


def train(spark: SparkSession, folder: Path) -> None:
    """Stream a Delta table through parsing, sessions, sums and a join, and a topic as far as one gets without it."""
    table = str(folder / "table")
    write_deltalake(table, pa.table({"lsn": [1, 2, 3], "value": [DOCUMENT] * 3}))
    query = (
        spark.readStream.format("delta")
        .load(table)
        .writeStream.foreachBatch(_fold)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    records = spark.readStream.format("kafka").options(**NO_BROKER, subscribe="none").load().select("value")
    reading = records.mapInArrow(_unchanged, "value binary").writeStream.foreachBatch(lambda *_: None)
    with suppress(PySparkException):
        reading.option("checkpointLocation", str(folder / "no broker")).start().awaitTermination()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _fold(batch: DataFrame, _: int) -> None:
    parsed = batch.selectExpr("lsn", f"inline(array(from_json(value, '{PARSED}')))").selectExpr("lsn", "id", "data.*")
    parsed.groupBy("model").agg({"tokens": "sum", "lsn": "max"}).toArrow()
    parsed.selectExpr("*", "session_window(time, '30 minutes') AS session").groupBy("id", "session").count().toArrow()
    waiting = batch.sparkSession.createDataFrame(pa.table({"id": ["1"], "request_lsn": [1]}))
    joined = parsed.join(waiting, on="id", how="full_outer")
    joined.selectExpr("*", "cast(tokens AS decimal(17, 0)) * cast('0.1' AS decimal(20, 12)) AS amount").toArrow()


def main() -> None:
    """Train, then end Java itself: the archive is written when it exits."""
    spark = spark_session("weir-class-training", connector_jars())
    train(spark, Path.cwd())
    gateway = SparkContext._gateway
    assert gateway is not None, "a session has a gateway"
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
