"""Spark's Python workers give what the judge itself gives, of a batch frame as of a stream."""

from __future__ import annotations

import polars as pl
from pyspark.sql import SparkSession

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import build
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS
from tests.corpus.contracts import GPU
from tests.pipelines.ingestion import records_of

CONFIG = IngestionConfig(contracts=(GPU,))


def test_what_spark_judges_is_what_the_judge_says_of_the_corpus(spark: SparkSession) -> None:
    records = records_of([document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)])
    found = build(spark.createDataFrame(records).repartition(3), CONFIG).toArrow()
    expected = pl.DataFrame(CONFIG.judge().judge(records))
    assert pl.DataFrame(found).sort("offset").equals(expected.sort("offset"))


def test_no_records_have_the_columns_of_records(spark: SparkSession) -> None:
    found = build(spark.createDataFrame(records_of([])), CONFIG).toArrow()
    assert found.num_rows == 0
    assert found.schema.equals(CONFIG.judge().schema)
