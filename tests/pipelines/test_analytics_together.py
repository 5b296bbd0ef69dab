"""Views, patterns and watches at once find what each finds alone, by the driver's rows and by Spark's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.analytics.config import AnalyticsConfig
from tests.conftest import fresh_database
from tests.pipelines.test_patterns_measured import PATTERNS
from tests.pipelines.test_watch_hits import WATCHES, add, rows_of, stored
from tests.streaming.measured import NOON, Happened, Measured, happened

VIEW = {
    "of": "outcomes",
    "by": ["model", "region"],
    "measures": {
        "requests": "count",
        "errors": {"count": {"where": {"status": ["error"]}}},
        "slowest_ms": {"max": "latency_ms"},
        "tokens": {"sum": "output_tokens"},
    },
}
ALONE: Mapping[str, Mapping[str, Any]] = {
    "views": {"views": {"health": VIEW}},
    "patterns": {"patterns": PATTERNS},
    "watches": {"watches": True},
}
TOGETHER: Mapping[str, Any] = {name: value for config in ALONE.values() for name, value in config.items()}
PANES = """
SELECT view, window_start, account, keys, measures FROM analytics_panes JOIN analytics_views USING (view_id)
"""
MATCHES = """
SELECT pattern, last.* FROM (
    SELECT DISTINCT ON (pattern_id, match_id) pattern_id, match_id, is_retracted, account, keys, first_lsn, last_lsn,
           started_at, ended_at, outcomes, measures
    FROM pattern_matches ORDER BY pattern_id, match_id, version DESC
) AS last JOIN analytics_patterns USING (pattern_id) WHERE NOT is_retracted
"""


@pytest.fixture
def databases(postgres_url: str) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(fresh_database(postgres_url)) for _ in range(5)]


def found(database: str) -> dict[str, Any]:
    of_patterns = [{**row, "pattern_id": None} for row in rows_of(database, MATCHES)]
    return {
        "views": sorted(map(repr, rows_of(database, PANES))),
        "patterns": sorted(map(repr, of_patterns)),
        "watches": stored(database),
    }


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(6))
def test_views_patterns_and_watches_at_once_find_what_each_finds_alone_by_the_drivers_rows_and_by_sparks(
    spark: SparkSession, databases: list[str], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    configs = [*ALONE.values(), TOGETHER, TOGETHER]
    written = Measured(spark, databases[0], tmp_path)
    stages = [copy(written) for _ in configs]
    for stage, database, config in zip(stages, databases, configs, strict=True):
        stage.database, stage.config = database, AnalyticsConfig.model_validate(config)
    for database in databases:
        for condition in WATCHES:
            add(database, condition)
    outcomes = [happened(chance, number) for number in range(60)]
    chance.shuffle(outcomes)
    counts: Counter[Happened] = Counter()
    while outcomes:
        some = [outcomes.pop() for _ in range(min(len(outcomes), chance.randint(25, 35)))]
        written.accept(some)
        back = chance.sample([one for one, count in counts.items() if count], min(len(+counts), chance.randint(0, 4)))
        signed = [*((one, 1) for one in some), *((one, -1) for one in back)]
        signed += [(one, 1) for one in back if chance.random() < 0.5]
        written.decide(signed, NOON + timedelta(hours=4))
        for one, sign in signed:
            counts[one] += sign
        end = written.usage.next_lsn
        # Together once in cuts, as the driver's rows where it can, and once in one batch by Spark.
        for stage, by_spark in zip(stages, (False, False, False, False, True), strict=True):
            while (driver := stage.driver()).position() < end:
                first = driver.position()
                batch = stage.rows(first, min(end, first + chance.randint(20, 60)) if stage is stages[3] else end)
                driver.process(spark.createDataFrame(batch) if by_spark else batch)
                driver.advance()
    of_each = {name: found(stages[number].database)[name] for number, name in enumerate(ALONE)}
    assert min(len(of_each["views"]), 2 * len(of_each["patterns"]), len(of_each["watches"][0])) > 20
    for stage in stages[3:]:
        together = found(stage.database)
        for name, alone in of_each.items():
            assert together[name] == alone
