"""Billing's two sizes: rows that Spark's workers add up part by part give, to the last digit, what the driver makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.billing.merging import added_up, merged
from jobs.billing.pipeline import JOB
from jobs.billing.staged import STAGED
from jobs.billing.sums import sums, sums_of_part
from jobs.runtime.batch import Seen
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.spark import DRIVER_ROWS
from jobs.runtime.summaries import summarized
from tests.conftest import fresh_database
from tests.pipelines.billing_universe import CONFIG, Universe, canonical, universe
from tests.pipelines.folding import fold_table, rows_of

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
    assert canonical(sums(drawn.usage, drawn.history, at_once=7)) == canonical(expected)


def test_the_universes_hold_every_kind_of_row() -> None:
    rows = pl.concat([pl.DataFrame(sums(drawn.usage, drawn.history)) for drawn in map(universe, range(12))])
    assert set(rows["decision"]) == {None, "correct", "drop", "hold"}
    assert set(rows["cause"]) == {"stream", "duplicate", "repriced", "restated", "decided"}
    assert set(rows["aggregation"]) == {None, "unique", "max", "min", "latest"}
    members = rows.filter(pl.col("aggregation").is_not_null() & pl.col("ends_at").is_not_null())
    assert set(members["is_correction"]) == {True, False}
    history = members.filter(~pl.col("is_correction"))
    assert history["usage_lsn"].null_count() not in (0, len(history)), "with and without corrections of the period"
    assert rows.filter(pl.col("usage_lsn").is_null())["metered_rows"].max() > 3  # type: ignore[operator]
    assert rows["unmetered_rows"].max() > 0  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(4))
def test_what_a_task_adds_up_merges_to_the_same(seed: int) -> None:
    drawn, chance = universe(seed), Random(seed)
    parts = [sums_of_part(part, drawn.history) for part in parts_of(drawn.usage, chance)]
    count = chance.randint(1, 3)
    made = [added_up(pa.concat_tables([STAGED.empty_table(), *parts[number::count]])) for number in range(count)]
    assert canonical(merged(pa.concat_tables(made))) == canonical(sums(drawn.usage, drawn.history))


def test_no_rows_have_no_sums(tmp_path: Path, spark: SparkSession) -> None:
    drawn = universe(0)
    assert sums(drawn.usage.slice(0, 0), drawn.history).equals(STAGED.empty_table())
    last = int(pc.max(drawn.usage["lsn"]).as_py())
    made, seen = _in_tasks(spark, _table(tmp_path, [drawn.usage]), last + 1, last + 2, drawn)
    assert made.equals(STAGED.empty_table())
    assert seen.rows == 0


@pytest.fixture
def databases(postgres_url: str, database: str) -> Iterator[list[str]]:
    with fresh_database(postgres_url) as second, fresh_database(postgres_url) as third:
        yield [database, second, third]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(12))
def test_driver_rows_of_1_of_100_and_by_default_bill_the_same_to_the_last_digit(
    spark: SparkSession, databases: list[str], tmp_path: Path, seed: int
) -> None:
    """Batches end anywhere, also inside a commit of an audit, and F passes deadlines and closes of periods."""
    drawn, chance = universe(seed), Random(seed)
    cuts = [0, *sorted(chance.sample(range(1, len(drawn.usage)), 3)), len(drawn.usage)]
    stored = [
        _folded(spark, _table(tmp_path / "usage", _files(drawn, Random(seed))), url, drawn, cuts, driver_rows)
        for url, driver_rows in zip(databases, (DRIVER_ROWS, 100, 1), strict=True)
    ]
    for table in TABLES:
        for other in stored[1:]:
            assert other[table] == stored[0][table], table
    for table in set(TABLES) - EMPTY_IN_THE_END:
        assert stored[0][table], f"the universe changes {table}"


def _files(drawn: Universe, chance: Random) -> list[pa.Table]:
    """The rows in files, in order of lsn, and then some of the files as one, as compaction leaves them."""
    cuts = sorted(chance.sample(range(1, len(drawn.usage)), 6))
    files = [drawn.usage.slice(first, end - first) for first, end in pairwise([0, *cuts, len(drawn.usage)])]
    return [*files[1:3], *files[4:], pa.concat_tables([files[3], files[0]])]


def _table(path: Path, files: list[pa.Table]) -> DeltaTable:
    """A table with these files; the one that the test has made before is the same."""
    if not DeltaTable.is_deltatable(str(path)):
        for file in files:
            write_deltalake(str(path), file, mode="append")
    return DeltaTable(str(path))


def _in_tasks(spark: SparkSession, table: DeltaTable, first: int, end: int, drawn: Universe) -> tuple[pa.Table, Seen]:
    """What tasks of Spark make of the rows with these lsns."""
    found = pieces_of_lsns(table, [*drawn.usage.column_names], first, end)
    how, history = JOB.build_in_tasks, drawn.history
    assert how is not None
    part = how.part
    made = summarized(spark, found, lambda rows: part(rows, history), how.added, ["account"])
    if made.seen.rows:
        assert made.last == {"account": drawn.usage["account"][end - 2].as_py()}
    return how.merged(made.rows), made.seen


def _folded(  # noqa: PLR0917
    spark: SparkSession, table: DeltaTable, url: str, drawn: Universe, cuts: list[int], driver_rows: int
) -> dict[str, list[dict[str, Any]]]:
    """What billing stores of the universe, with batches above `driver_rows` read and added up by tasks of Spark."""
    before = None
    with psycopg.connect(url, autocommit=True) as connection:
        for first, end in pairwise(cuts):
            batch = drawn.usage.slice(first, end - first)
            if len(batch) <= driver_rows:
                staged = sums(batch, drawn.history)
            else:
                staged, seen = _in_tasks(spark, table, first + 1, end + 1, drawn)
                assert seen == Seen(end - first, first + 1, end, is_chain=True)
            is_whole = end == len(drawn.usage) or drawn.commits[end] != drawn.commits[end - 1]
            frontier = drawn.frontiers[end - 1] if is_whole else before
            fold_table(
                connection, JOB, staged, CONFIG, before, frontier=frontier, next_position=end + 1, is_whole=is_whole
            )
            before = frontier
        return {name: rows_kept(connection, name) for name in TABLES}


def rows_kept(
    connection: psycopg.Connection[Any], table: str, volatile: Collection[str] = VOLATILE
) -> list[dict[str, Any]]:
    """The rows of a table, without what is another in each run."""
    found = [
        {name: value for name, value in row.items() if name not in volatile}
        # Of those that are settled in one transaction the order is any.
        | ({"settled": row["settled"] and row["settled"] > 0} if "settled" in row else {})
        for row in rows_of(connection, f"SELECT * FROM {table}")
    ]
    return sorted(found, key=repr)
