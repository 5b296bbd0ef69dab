"""A driver's own files: one that Arrow writes says and holds what one of delta-rs does, and is fenced as any."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.live_files import LiveFiles, files_of
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.errors import Fenced
from jobs.streams import JOURNAL, SCHEMAS, USAGE, Table

LOGGED_AT = datetime(2026, 1, 2, 23, 59, 59, 999_999, tzinfo=UTC)
ZSTD = "part-*.zstd.parquet"


def usage(lsn: int, count: int = 5) -> pa.Table:
    """Rows in which each column has a value, and each nullable one also none."""
    entry = {"meter": "tokens", "quantity": Decimal("1.5"), "price_version": 3, "unit_price": None, "amount": None}
    made = [filled(USAGE, lsn + n) | {"lsn": lsn + n, "meters": [entry] * (n % 3)} for n in range(count)]
    return pa.Table.from_pylist(made, schema=USAGE)


def journal(lsn: int, count: int = 5) -> pa.Table:
    return pa.Table.from_pylist([filled(JOURNAL, lsn + n) | {"lsn": lsn + n} for n in range(count)], schema=JOURNAL)


def filled(schema: pa.Schema, number: int) -> dict[str, Any]:
    row = {
        field.name: value(field.type, number) if number % 2 or not field.nullable else None
        for field in schema
        if not pa.types.is_list(field.type)
    }
    return row | {"log_date": LOGGED_AT.date(), "logged_at": LOGGED_AT}


def value(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_timestamp(kind):
        return LOGGED_AT - timedelta(microseconds=number * 1_234_567)
    if pa.types.is_date32(kind):
        return date(2026, 1, 1)
    if pa.types.is_decimal(kind):
        return Decimal(number)
    if pa.types.is_boolean(kind):
        return True
    if pa.types.is_binary(kind):
        return f"é{number}".encode()
    return f"é{number}" if pa.types.is_string(kind) else number


def columns_with_statistics(found: DeltaTable) -> set[str]:
    """Of the groups of rows in its first file."""
    group = pq.read_metadata(found.file_uris()[0]).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    return {column.path_in_schema for column in columns if column.is_stats_set}


def writer(tables: Path, table: Table, epoch: int = 1, *, own_commits: bool = True) -> DeltaWriter:
    """One that writes files and commits itself, or has delta-rs do so."""
    return DeltaWriter(str(tables), table, "joins", epoch, own_commits=own_commits)


def actions(found: DeltaTable) -> list[dict[str, Any]]:
    of_files = pa.table(found.get_add_actions(flatten=True))
    return list(of_files.drop_columns(["path", "size_bytes", "modification_time"]).to_pylist())


@pytest.mark.parametrize(("table", "made"), [(Table.USAGE, usage), (Table.JOURNAL, journal)])
def test_an_own_file_says_and_holds_what_one_of_delta_rs_does(tmp_path: Path, table: Table, made: Any) -> None:
    found = []
    for name, is_own in (("delta-rs", False), ("arrow", True)):
        driver = writer(tmp_path / name, table, own_commits=is_own)
        driver.commit(made(1), {LSN: 6, "journal": 7})
        driver.commit(made(6, 1), {LSN: 7})
        found.append(driver.table)
    assert [len([*(tmp_path / name / table).rglob(ZSTD)]) for name in ("delta-rs", "arrow")] == [0, 2]
    assert actions(found[0]) == actions(found[1])
    assert [each.transaction_version("journal") for each in found] == [7, 7]
    read = [each.to_pyarrow_table().sort_by(LSN) for each in found]
    assert read[0].equals(read[1])
    assert read[1].select(SCHEMAS[table].names).equals(pa.concat_tables([made(1), made(6, 1)]).cast(read[1].schema))
    kinds = [pq.read_schema(each.file_uris()[0]).remove_metadata() for each in found]
    assert {field.name: str(field.type) for field in kinds[0]} == {f.name: str(f.type) for f in kinds[1]}
    assert [field.nullable for field in kinds[0]] == [field.nullable for field in kinds[1]]
    passed_over = [columns_with_statistics(each) for each in found]
    assert passed_over[0] <= passed_over[1], "readers pass over as many groups of rows"
    frames = [pl.read_delta(each.table_uri).sort(LSN) for each in found]
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("year", [1, 999, 1969, 9999])
def test_an_own_file_says_of_any_instant_what_one_of_delta_rs_does(tmp_path: Path, year: int) -> None:
    """ingestion stores none before 1970; a statistic that cannot be read would stop whoever follows the log."""
    at = datetime(year, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)
    made = [{**row, "occurred_at": at, "event_time": at} for row in journal(1).to_pylist()]
    rows = pa.Table.from_pylist(made, schema=JOURNAL)
    found = []
    for name, is_own in (("delta-rs", False), ("arrow", True)):
        driver = writer(tmp_path / name, Table.JOURNAL, own_commits=is_own)
        live = LiveFiles(driver.path, (LSN,))
        live.read(driver.table)
        driver.commit(rows, {LSN: 6})
        assert live.follow()
        assert live.files.equals(files_of(driver.table))
        assert live.files["max.event_time"].null_count() == 0
        found.append(actions(driver.table))
    assert found[0] == found[1]


def test_spark_reads_an_own_file_as_one_of_delta_rs(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for name, is_own in (("delta-rs", False), ("arrow", True)):
        writer(tmp_path / name, Table.USAGE, own_commits=is_own).commit(usage(1), {LSN: 6})
        read = spark.read.format("delta").load(str(tmp_path / name / Table.USAGE))
        found.append([read.orderBy(LSN).collect(), read.where("lsn > 4").count(), read.schema])
    assert found[0] == found[1]
    assert found[1][1] == 1


def test_a_fenced_drivers_own_file_is_not_read_and_compaction_removes_it(tmp_path: Path) -> None:
    old = writer(tmp_path, Table.USAGE)
    old.commit(usage(1), {LSN: 6})
    writer(tmp_path, Table.USAGE, epoch=2)
    # As if its successor came after it has written the file, and before it commits.
    left = old.folder.write(usage(6), LOGGED_AT, old.statistics)
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        old._put([left], old._fence() | {LSN: 11})
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2"):
        old.commit(usage(6), {LSN: 11})
    files = [*(tmp_path / Table.USAGE).rglob(ZSTD)]
    assert len(files) == 2
    assert DeltaTable(str(tmp_path / Table.USAGE)).to_pyarrow_table()[LSN].to_pylist() == [1, 2, 3, 4, 5]
    as_if_two_days_ago(files)
    compact(str(tmp_path), Table.USAGE, before=LOGGED_AT.date(), keep=timedelta(days=1))
    assert len([*(tmp_path / Table.USAGE).rglob(ZSTD)]) == 1
    assert DeltaTable(str(tmp_path / Table.USAGE)).to_pyarrow_table()[LSN].to_pylist() == [1, 2, 3, 4, 5]


def as_if_two_days_ago(files: list[Path]) -> None:
    for file in files:
        two_days_ago = file.stat().st_mtime - 2 * 86_400
        os.utime(file, (two_days_ago, two_days_ago))


def test_what_is_compacted_of_both_is_the_same_rows(tmp_path: Path) -> None:
    writer(tmp_path, Table.USAGE).commit(usage(1), {LSN: 6})
    driver = writer(tmp_path, Table.USAGE, epoch=2, own_commits=False)
    driver.commit(usage(6, 3), {LSN: 9})
    done = compact(str(tmp_path), Table.USAGE, before=LOGGED_AT.date() + timedelta(days=1), keep=timedelta(days=7))
    assert done is not None
    assert (done.files_before, done.files_after) == (2, 1)
    found = DeltaTable(driver.path)
    assert found.to_pyarrow_table().sort_by(LSN).equals(pa.concat_tables([usage(1), usage(6, 3)]).cast(USAGE))
    (file,) = found.file_uris()
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("is_own", [True, False])
def test_a_missing_value_that_the_table_requires_is_refused_by_both(tmp_path: Path, is_own: bool) -> None:
    driver = writer(tmp_path, Table.USAGE, own_commits=is_own)
    field = USAGE.field("account")
    broken = usage(1).set_column(USAGE.get_field_index("account"), field, pa.nulls(5, pa.string()))
    with pytest.raises(Exception, match=r"null|non-nullable"):
        driver.commit(broken, {LSN: 6})
    assert DeltaTable(driver.path).to_pyarrow_table().num_rows == 0
