"""Rows of a table that are looked up by lsn, read by the driver without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.delta.lookup import DeltaLookup
from jobs.runtime.delta.rows_by_lsn import few_rows
from jobs.streams import Table

RATE = 10_000
COMMIT_SECONDS, BATCH_SECONDS, LATENCY_SECONDS = 5, 15, 60


def rows(first: int, count: int) -> pa.Table:
    lsns = range(first, first + count)
    return pa.table({"lsn": pa.array(lsns, pa.int64()), "model": pa.array([f"m-{lsn % 7}" for lsn in lsns])})


def written(folder: Path, counts: list[int]) -> DeltaTable:
    """A table with a file for each of so many rows, and a gap of an lsn after each."""
    first = 1
    for count in counts:
        write_deltalake(folder, rows(first, count), mode="append")
        first += count + 1
    return DeltaTable(folder)


@given(st.data())
def test_the_rows_with_these_lsns_are_found_in_whatever_files_they_are(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("rows") / Table.JOURNAL
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    found = written(folder, counts)
    lsns = pl.Series(data.draw(st.lists(st.integers(0, sum(counts) + len(counts) + 2), max_size=9)), dtype=pl.Int64)
    of_all = pl.DataFrame(found.to_pyarrow_table()).filter(pl.col("lsn").is_in(lsns.implode())).sort("lsn")
    looked_up = few_rows(found, lsns, ("model", "a column that it lacks"), max_rows=sum(counts))
    assert looked_up is not None
    assert looked_up.sort("lsn").equals(of_all)


def test_outcomes_whose_requests_are_a_minute_old_are_looked_up_without_spark_at_10_000_events_a_second(
    tmp_path: Path,
) -> None:
    each = RATE * COMMIT_SECONDS
    files = (BATCH_SECONDS + LATENCY_SECONDS) // COMMIT_SECONDS
    found = written(tmp_path / Table.JOURNAL, [each] * files)
    lookup = DeltaLookup(None, str(tmp_path))  # type: ignore[arg-type]
    lsns = pl.Series(range(1, found.count(), 40))
    looked_up = lookup.few_rows(Table.JOURNAL, lsns, ["model"])
    assert looked_up is not None
    assert {*looked_up["lsn"]} == {*lsns} - {number * (each + 1) for number in range(files)}
