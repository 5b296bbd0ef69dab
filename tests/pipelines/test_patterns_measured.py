"""Patterns over usage and the journal, by drivers of analytics: what a view's oracle does for panes."""

from __future__ import annotations

import random
from base64 import b64decode
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.blocks import Block, blocks_in_tasks, blocks_of_rows, read_block
from jobs.analytics.pipeline import STAGED
from jobs.rebuild.analytics import begin_again
from jobs.streams import INSTANT
from metering.vocabulary import Outcome
from tests.pipelines import pattern_rows
from tests.pipelines.pattern_rows import expected, sequences, standing
from tests.streaming.measured import NOON, VIEWS, Happened, Measured, happened

FRONTIER = NOON + timedelta(hours=4)
PATTERNS = {
    "failing": {
        "of": "outcomes",
        "partition_by": ["account", "user_id"],
        "pattern": "A B+? C",
        "define": {
            "A": 'status = "error" or outcome = "abandoned"',
            "B": 'region is null or latency_ms > 100 or status in ("cancelled", "error")',
            "C": "output_tokens != prev(output_tokens) or model != prev(model)",
        },
        "within": "PT30M",
        "measures": {"tokens": "sum(output_tokens)", "slowest": "max(latency_ms)", "regions": "count(region)"},
    },
    "any": {"of": "outcomes", "partition_by": ["model"], "pattern": "A{3}", "within": "PT5M"},
}


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Measured:
    config = AnalyticsConfig.model_validate({"patterns": PATTERNS, "views": {"accounts": VIEWS["accounts"]}})
    return Measured(spark, database, tmp_path, config)


def seen(stage: Measured, one: Happened) -> pattern_rows.Happened:
    """As a pattern sees it."""
    lsn = next(lsn for lsn in stage.lsns[one.number] if lsn is not None)
    latency = None if one.latency_ms is None else Decimal(str(one.latency_ms))
    columns = {
        "account": one.account,
        "user_id": one.user,
        "status": one.effective_status,
        "outcome": one.outcome.value,
        "region": one.region,
        "latency_ms": latency,
        "output_tokens": one.tokens,
        "model": one.model,
    }
    return pattern_rows.Happened(lsn, one.at, tuple(columns.items()))  # type: ignore[arg-type]


def refuse_differences(stage: Measured, counts: Counter[Happened], frontier: datetime) -> int:
    rows = [seen(stage, one) for one in +counts if one.outcome in (Outcome.MATCHED, Outcome.ABANDONED)]
    total = 0
    with psycopg.connect(stage.database) as database:
        for pattern in sequences(stage.config):
            must = expected(pattern, rows, frontier - pattern.grace)
            found = {(row["first_lsn"], row["last_lsn"]): row for row in standing(database, pattern.name)}
            assert found.keys() == {(match["rows"][0].lsn, match["rows"][-1].lsn) for match in must}
            total += len(must)
            if pattern.name == "failing":
                for match in must:
                    measures = found[match["rows"][0].lsn, match["rows"][-1].lsn]["measures"]
                    assert {name: _number(value) for name, value in measures.items()} == _measures(match["rows"])
    return total


def versions(stage: Measured) -> list[tuple[Any, ...]]:
    with psycopg.connect(stage.database) as database:
        return database.execute("SELECT * FROM pattern_matches ORDER BY pattern_id, match_id, version").fetchall()


def _measures(rows: list[pattern_rows.Happened]) -> dict[str, Any]:
    tokens, latencies = (
        [one[name] for one in rows if one[name] is not None] for name in ("output_tokens", "latency_ms")
    )
    regions = sum(one["region"] is not None for one in rows)
    return {"tokens": sum(tokens) if tokens else None, "slowest": max(latencies, default=None), "regions": regions}


def _number(value: str | int | None) -> Decimal | int | None:
    return Decimal(value) if isinstance(value, str) else value


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(6))
def test_oracle_any_cut_order_restart_retraction_and_rebuild_finds_the_matches_of_all_outcomes(
    stage: Measured, seed: int
) -> None:
    chance = random.Random(seed)
    outcomes = [happened(chance, number) for number in range(120)]
    chance.shuffle(outcomes)
    counts: Counter[Happened] = Counter()
    while outcomes:
        some = [outcomes.pop() for _ in range(min(len(outcomes), chance.randint(30, 60)))]
        stage.accept(some)
        back = chance.sample([one for one, count in counts.items() if count], min(len(+counts), chance.randint(0, 3)))
        signed = [*((one, 1) for one in some), *((one, -1) for one in back)]
        stage.decide(signed, FRONTIER)
        for one, sign in signed:
            counts[one] += sign
        # Each batch is decided before the next one comes: it is late.
        driver = stage.driver()
        batch = stage.rows(driver.position(), stage.usage.next_lsn)
        driver.process(batch if chance.random() < 0.5 else stage.spark.createDataFrame(batch))
        driver.advance()
        refuse_differences(stage, counts, FRONTIER)
    assert refuse_differences(stage, counts, FRONTIER) > 10
    # From row 1 in two batches: nothing is decided before all is read, so no match changes.
    before = versions(stage)
    end, middle = stage.usage.next_lsn, chance.randint(20, 100)
    begin_again(str(stage.tables), stage.database)
    for first, until in ((1, middle), (middle, end)):
        driver = stage.driver()
        driver.process(stage.rows(first, until))
        driver.advance()
    refuse_differences(stage, counts, FRONTIER)
    assert versions(stage) == before


OF_TEXTS_AND_INTEGERS = {
    "texts": {
        "of": "outcomes",
        "partition_by": ["account"],
        "pattern": "A",
        "define": {"A": 'model = "m-1" and output_tokens <= 16'},
        "within": "PT1M",
    }
}


@pytest.mark.parametrize("seed", range(3))
def test_the_driver_makes_the_same_blocks_as_tasks_of_texts_and_integers(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    integers = [None, 0, 16, -1, 2**63 - 1, -(2**63), 10**18 + 1]
    rows = [
        {
            "event_time": NOON + timedelta(microseconds=chance.randrange(4 * 60_000_000)),
            "request_lsn": chance.choice([None, 2 * number + 1]),
            "completion_lsn": 2 * number + 2,
            "account": chance.choice(["a", "", "0.10", None, "\u00e4"]),
            "model": chance.choice(["m-1", "m-2", None]),
            "output_tokens": chance.choice(integers),
        }
        for number in range(400)
    ]
    kinds = {"event_time": INSTANT, "account": pa.string(), "model": pa.string()}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in rows[0]])
    outcomes = pa.Table.from_pylist(rows, schema=schema)
    patterns = AnalyticsConfig.model_validate({"patterns": OF_TEXTS_AND_INTEGERS}).declared_patterns
    here = blocks_of_rows(outcomes, patterns)
    assert here is not None
    staged = blocks_in_tasks(spark.createDataFrame(outcomes), patterns, STAGED).toArrow().to_pylist()
    in_tasks = [Block(row["window_start"], int(row["version"]), b64decode(row["measures"])) for row in staged]
    assert_frame_equal(of_blocks(here), of_blocks(in_tasks))
    assert of_blocks(here).height == 400
    for kind in (pa.float64(), pa.string(), pa.bool_()):
        column = pa.nulls(len(outcomes), kind)
        cast = outcomes.set_column(schema.names.index("output_tokens"), "output_tokens", column)
        assert blocks_of_rows(cast, patterns) is None, kind


def of_blocks(listed: list[Block]) -> pl.DataFrame:
    """The outcomes of all blocks with their minutes, in order."""
    blocks = [read_block(block.content).with_columns(minute=pl.lit(block.minute)) for block in listed]
    assert [block.rows for block in listed] == [block.height for block in blocks]
    return pl.concat(blocks).sort("event_time", "#lsn")
