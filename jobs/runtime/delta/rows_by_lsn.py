"""Rows of a table by lsn, from the only files that can hold them: a dataset of all costs half a millisecond each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.runtime.delta.scans import collected, scan_files


def rows_at(table: DeltaTable, lsn: int, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, date | None]]:
    """The rows with this lsn, file by file with its log date; none where there is no such row. Raises OSError."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(
        pl.col("min.lsn").fill_null(lsn) <= lsn, pl.col("max.lsn").fill_null(lsn) >= lsn
    )
    for path, log_date in files.select("path", "partition.log_date").iter_rows():
        found = _read(table, path, pl.col("lsn") == lsn, columns)
        if not found.is_empty():
            yield found, log_date


def count_from(table: DeltaTable, lsn: int) -> int:
    """How many rows have this lsn or a later one. Raises OSError."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    if files.is_empty():
        return 0
    later = files.filter(pl.col("min.lsn") >= lsn)["num_records"].sum()
    of_both = files.filter(pl.col("min.lsn") < lsn, pl.col("max.lsn") >= lsn)["path"]
    return int(later) + sum(len(_read(table, path, pl.col("lsn") >= lsn, ["lsn"])) for path in of_both)


def few_rows(table: DeltaTable, lsns: pl.Series, columns: Sequence[str], max_rows: int) -> pl.DataFrame | None:
    """`lsn` and those of `columns` that the table has, of the rows with these lsns; null where a file lacks a column.

    None where the files that hold them have more than `max_rows`. Raises OSError.
    """
    ordered = lsns.unique().sort()
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    begin = ordered.search_sorted(files["min.lsn"], side="left")
    end = ordered.search_sorted(files["max.lsn"], side="right")
    holding = files.select("path", "num_records", begin=begin, end=end).filter(pl.col("begin") < pl.col("end"))
    if holding["num_records"].sum() > max_rows:
        return None
    kinds = pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema
    wanted = {name: kinds[name] for name in ("lsn", *columns) if name in kinds}
    # Each file is asked for its own lsns: a set of all of them would be made again for each file.
    found = [
        _read(table, path, pl.col("lsn").is_in(ordered[first:after].implode()), [*wanted], wanted)
        for path, first, after in holding.select("path", "begin", "end").iter_rows()
    ]
    return pl.concat([pl.DataFrame(schema=wanted), *found])


def whole(table: DeltaTable, columns: Sequence[str]) -> pl.DataFrame:
    """All rows of a small table; null where it, or a file of it, lacks a column. Raises OSError."""
    kinds = pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema
    wanted = {name: kinds[name] for name in columns if name in kinds}
    files = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    found = [_read(table, path, pl.lit(value=True), [*wanted], wanted) for path in files["path"]]
    missing = [pl.lit(None, pl.String).alias(name) for name in columns if name not in wanted]
    return pl.concat([pl.DataFrame(schema=wanted), *found]).with_columns(missing)


def rows_of_file(table: DeltaTable, path: str, condition: pl.Expr, columns: Sequence[str]) -> pl.DataFrame:
    """The rows of one file that meet the condition; columns that the file lacks are null. Raises OSError."""
    kinds = pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema
    return _read(table, path, condition, columns, {name: kinds[name] for name in columns})


def _read(
    table: DeltaTable,
    path: str,
    condition: pl.Expr,
    columns: Sequence[str],
    kinds: Mapping[str, pl.DataType] | None = None,
) -> pl.DataFrame:
    """`kinds`: of the columns, where the file may lack some of them, which are null then."""
    place = f"{table.table_uri.rstrip('/')}/{path}"
    file = pl.scan_parquet(place, hive_partitioning=False, glob=False) if kinds is None else scan_files([place], kinds)
    return collected(file.filter(condition).select(columns))
