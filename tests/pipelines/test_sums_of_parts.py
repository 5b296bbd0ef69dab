"""Billing's two sizes: rows that Spark's workers add up part by part give, to the last digit, what the driver makes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.billing.merging import merged
from jobs.billing.pipeline import JOB
from jobs.billing.staged import STAGED
from jobs.billing.sums import sums, sums_of_part
from jobs.runtime.postgres.sink import DRIVER_ROWS
from tests.conftest import fresh_database
from tests.pipelines.billing_universe import CONFIG, Universe, canonical, universe
from tests.pipelines.folding import fold_table, frame, rows_of

TABLES = (
    *("usage_windows", "usage_days", "usage_day_dimensions", "stragglers", "corrections", "taken_back_on_time"),
    *("usage_members", "late_members", "unsent_windows"),
)
EMPTY_IN_THE_END = {"late_members"}
VOLATILE = ("updated_at", "corrected_at", "changed_at", "recorded_at", "number", "settled")


def parts_of(usage: pa.Table, chance: Random) -> list[pa.Table]:
    """The rows in a few parts, none of which needs to be contiguous, each in any order."""
    places = list(range(len(usage)))
    chance.shuffle(places)
    cuts = sorted(chance.sample(range(len(places)), chance.choice([1, 4, 40])))
    return [usage.take(pa.array(places[first:end], pa.int64())) for first, end in pairwise([0, *cuts, len(places)])]


@pytest.mark.parametrize("seed", range(12))
def test_any_parts_of_usage_merge_to_the_sums_of_all_of_it(seed: int) -> None:
    drawn = universe(seed)
    expected = sums(drawn.usage, drawn.history)
    assert len(expected) > 50
    parts = [sums_of_part(part, drawn.history) for part in parts_of(drawn.usage, Random(seed))]
    assert canonical(merged(pa.concat_tables(parts))) == canonical(expected)
    by_account = pl.DataFrame(pa.concat_tables(parts)).partition_by("account")
    made = pa.concat_tables([merged(sums_.to_arrow().cast(STAGED)) for sums_ in by_account])
    assert canonical(made) == canonical(expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_driver_merges_the_parts_of_a_batch_that_is_large(seed: int) -> None:
    drawn = universe(seed)
    expected = sums(drawn.usage, drawn.history)
    with patch("jobs.billing.sums.BATCH_ROWS", 7):
        assert canonical(sums(drawn.usage, drawn.history)) == canonical(expected)


def test_the_universes_hold_every_kind_of_row() -> None:
    rows = pl.concat([pl.DataFrame(sums(drawn.usage, drawn.history)) for drawn in map(universe, range(12))])
    assert set(rows["decision"]) == {None, "correct", "drop", "hold"}
    assert set(rows["cause"]) == {"stream", "duplicate", "repriced", "restated", "decided"}
    assert set(rows["aggregation"]) == {None, "unique", "max", "latest"}
    members = rows.filter(pl.col("aggregation").is_not_null() & pl.col("ends_at").is_not_null())
    assert set(members["is_correction"]) == {True, False}
    history = members.filter(~pl.col("is_correction"))
    assert history["usage_lsn"].null_count() not in (0, len(history)), "with and without corrections of the period"
    assert rows.filter(pl.col("usage_lsn").is_null())["metered_rows"].max() > 3  # type: ignore[operator]
    assert rows["unmetered_rows"].max() > 0  # type: ignore[operator]


def test_no_rows_have_no_sums(spark: SparkSession) -> None:
    none = universe(0).usage.slice(0, 0)
    history = universe(0).history
    assert sums(none, history).equals(STAGED.empty_table())
    made = JOB.build(frame(spark, none.schema, []), CONFIG, history).toArrow()
    assert made.num_rows == 0


@pytest.fixture
def databases(postgres_url: str, database: str) -> Iterator[list[str]]:
    with fresh_database(postgres_url) as second, fresh_database(postgres_url) as third:
        yield [database, second, third]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(12))
def test_driver_rows_of_1_of_100_and_by_default_bill_the_same_to_the_last_digit(
    spark: SparkSession, databases: list[str], seed: int
) -> None:
    """Batches end anywhere, also inside a commit of an audit, and F passes deadlines and closes of periods."""
    drawn, chance = universe(seed), Random(seed)
    cuts = [0, *sorted(chance.sample(range(1, len(drawn.usage)), 3)), len(drawn.usage)]
    stored = [
        _folded(spark, url, drawn, cuts, driver_rows)
        for url, driver_rows in zip(databases, (DRIVER_ROWS, 100, 1), strict=True)
    ]
    for table in TABLES:
        for other in stored[1:]:
            assert other[table] == stored[0][table], table
    for table in set(TABLES) - EMPTY_IN_THE_END:
        assert stored[0][table], f"the universe changes {table}"


def _folded(
    spark: SparkSession, url: str, drawn: Universe, cuts: list[int], driver_rows: int
) -> dict[str, list[dict[str, Any]]]:
    """What billing stores of the universe, with batches above `driver_rows` added up in Spark's workers."""
    before = None
    with psycopg.connect(url, autocommit=True) as connection:
        for first, end in pairwise(cuts):
            batch = drawn.usage.slice(first, end - first)
            if len(batch) <= driver_rows:
                staged = sums(batch, drawn.history)
            else:
                rows = frame(spark, batch.schema, batch.to_pylist()).repartition(3)
                staged = JOB.build(rows, CONFIG, drawn.history).toArrow()
            is_whole = end == len(drawn.usage) or drawn.commits[end] != drawn.commits[end - 1]
            frontier = drawn.frontiers[end - 1] if is_whole else before
            fold_table(
                connection, JOB, staged, CONFIG, before, frontier=frontier, next_position=end + 1, is_whole=is_whole
            )
            before = frontier
        return {table: _rows(connection, table) for table in TABLES}


def _rows(connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    found = [
        {name: value for name, value in row.items() if name not in VOLATILE}
        # Of those that are settled in one transaction the order is any.
        | ({"settled": row["settled"] and row["settled"] > 0} if "settled" in row else {})
        for row in rows_of(connection, f"SELECT * FROM {table}")
    ]
    return sorted(found, key=repr)
