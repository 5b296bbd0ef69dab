"""Sums of a Delta table's newest days, cached while its files exist: only new files are read.

The tables get a small file every few seconds; reading a day of them for every viewer would take a minute.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from dashboard.backend import Backend, Unavailable

BUDGET_SECONDS = 1.0
"""So long a page waits for unread files; what is not read then is read by the next question."""

BATCH_FILES = 256


@dataclass(frozen=True)
class Recipe:
    """How rows become a summary. `reduce` takes a file's rows; `merge` takes summaries and gives one; both keep keys.

    Merging must not depend on order or grouping (sums, counts, least, greatest). A summary has `received_at`, the
    latest.
    """

    name: str
    table: str
    days: int
    reduce: Callable[[pl.LazyFrame], pl.LazyFrame]
    merge: Callable[[pl.LazyFrame], pl.LazyFrame]


@dataclass(frozen=True)
class Digested:
    """A summary of `files_read` of the `files` that hold the last days. `newest` is when the last row was received."""

    rows: pl.DataFrame
    files_read: int
    files: int

    @property
    def newest(self) -> datetime | None:
        """None without a row."""
        return None if self.rows.is_empty() else self.rows["received_at"].max()  # type: ignore[return-value]

    @property
    def is_complete(self) -> bool:
        """Whether every file was read."""
        return self.files_read == self.files


@dataclass
class _Day:
    paths: set[str] = field(default_factory=set)
    rows: pl.DataFrame | None = None


class _Digest:
    """The summary of one table, recipe and scope. Used under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._days: dict[date, _Day] = {}

    def take(self, backend: Backend, recipe: Recipe, table: DeltaTable, today: date) -> Digested:
        files = _files(table, today - timedelta(days=recipe.days - 1))
        self._forget(files)
        deadline = time.monotonic() + BUDGET_SECONDS
        for day in sorted(files, reverse=True):
            known = self._days.setdefault(day, _Day())
            unread = [path for path in files[day] if path not in known.paths]
            for start in range(0, len(unread), BATCH_FILES):
                if time.monotonic() > deadline:
                    break
                self._read(backend, recipe, known, table, unread[start : start + BATCH_FILES])
        return self._result(recipe, files)

    def _forget(self, files: dict[date, list[str]]) -> None:
        """Days that are out of sight, and days whose files were rewritten: these are read again."""
        for day in list(self._days):
            if day not in files or not self._days[day].paths.issubset(files[day]):
                del self._days[day]

    def _read(self, backend: Backend, recipe: Recipe, day: _Day, table: DeltaTable, paths: list[str]) -> None:
        # A file that is older than a column of its table has no value of it.
        rows = pl.scan_parquet(
            [f"{table.table_uri.rstrip('/')}/{path}" for path in paths],
            schema=pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema,
            hive_partitioning=False,
            missing_columns="insert",
        )
        try:
            summary = recipe.reduce(rows.filter(backend.scope.holds())).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise Unavailable(f"The table {recipe.table} cannot be read: {type(error).__name__}.") from error
        parts = [summary] if day.rows is None else [day.rows, summary]
        day.rows = recipe.merge(pl.concat(parts).lazy()).collect()
        day.paths.update(paths)

    def _result(self, recipe: Recipe, files: dict[date, list[str]]) -> Digested:
        parts = [day.rows for day in self._days.values() if day.rows is not None]
        rows = recipe.merge(pl.concat(parts).lazy()).collect() if parts else pl.DataFrame()
        return Digested(
            rows=rows,
            files_read=sum(len(day.paths) for day in self._days.values()),
            files=sum(len(day) for day in files.values()),
        )


MAX_DIGESTS = 64
"""Of the scopes that were asked about last: each keeps the names of thousands of files."""
DIGESTS: OrderedDict[tuple[str, str, Backend], _Digest] = OrderedDict()
"""By recipe, table and backend, and so by scope: what one may see is never added up for another."""
_digests_lock = threading.Lock()


def digest(backend: Backend, recipe: Recipe, today: date) -> Digested | None:
    """The summary of the scope's rows in the `recipe.days` log dates that end with `today`; None without a table."""
    table = backend.table(recipe.table)
    if table is None:
        return None
    with _digests_lock:
        key = (recipe.name, table.table_uri, backend)
        kept = DIGESTS.setdefault(key, _Digest())
        DIGESTS.move_to_end(key)
        if len(DIGESTS) > MAX_DIGESTS:
            DIGESTS.popitem(last=False)
    with kept.lock:
        return kept.take(backend, recipe, table, today)


def _files(table: DeltaTable, since: date) -> dict[date, list[str]]:
    """Paths of the files with rows, by log date from `since` on, the newest first."""
    added = pa.table(table.get_add_actions(flatten=True))
    columns = (added[name].to_pylist() for name in ("path", "partition.log_date", "num_records", "modification_time"))
    found: dict[date, list[str]] = {}
    for path, day, rows, _ in sorted(zip(*columns, strict=True), key=lambda file: file[3], reverse=True):
        if rows and day >= since:
            found.setdefault(day, []).append(path)
    return found
