"""The files that a table has, commit by commit.

A handle of delta-rs takes longer for each commit since its checkpoint, and again to list its files: 0.2 and 0.05 ms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable

from jobs.runtime.delta.known_commit import MAX_COMMITS, KnownCommit, Log

INSTANT = pl.Datetime("us", "UTC")
FILES = {
    "path": pl.String(),
    "size_bytes": pl.Int64(),
    "num_records": pl.Int64(),
    "min.lsn": pl.Int64(),
    "max.lsn": pl.Int64(),
    "max.event_time": INSTANT,
}
"""Of files that have rows; the last one may be null."""


def files_of(table: DeltaTable) -> pl.DataFrame:
    """FILES of a version of a table whose rows have lsns, by the first."""
    found = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("num_records") > 0)
    if "max.event_time" not in found.columns:
        found = found.with_columns(pl.lit(None, INSTANT).alias("max.event_time"))
    path = pl.col("path").map_elements(unquote, pl.String)
    return found.with_columns(path).select(pl.col(name).cast(kind) for name, kind in FILES.items()).sort("min.lsn")


class LiveFiles:
    """FILES and some transactions of a table, as of the last look."""

    def __init__(self, path: str, transactions: Iterable[str]) -> None:
        self._path = path
        self._version = -1
        self.files = pl.DataFrame(schema=FILES)
        self.transactions: dict[str, int | None] = dict.fromkeys(transactions)

    @cached_property
    def _held(self) -> KnownCommit:
        """Made when there is a table."""
        return KnownCommit(self._path)

    def read(self, table: DeltaTable) -> None:
        """Those of this version."""
        self.files = files_of(table)
        self.transactions = {name: table.transaction_version(name) for name in self.transactions}
        self._version = int(table.version())
        self._held.hold(table)

    def goes_on(self) -> bool:
        """Whether a commit follows the last that was seen, or that one is gone from the log."""
        return self._version < 0 or self._held.has(self._version + 1) or not self._held.has(self._version)

    def is_same_log(self) -> bool:
        """Whether the log still has the last commit that was seen, if one was: else it may be another table's."""
        return self._version >= 0 and self._held.log() is Log.SAME

    def follow(self) -> bool:
        """Look at the commits since. False where the table must be opened for it, and `read`: it is another one, has
        other columns, or commits are not in the log any more.
        """
        if not self.is_same_log():
            return False
        for _ in range(MAX_COMMITS):
            if (actions := self._held.commit(self._version + 1)) is None:
                self._held.hold_version(self._version)
                return True
            if not self._apply(actions):
                self._version = -1
                return False
            self._version += 1
        return False

    def _apply(self, actions: Iterable[Mapping[str, Any]]) -> bool:
        added: list[tuple[Any, ...]] = []
        replaced: set[str] = set()
        for action in actions:
            if "metaData" in action or "protocol" in action:
                return False
            if "txn" in action and action["txn"]["appId"] in self.transactions:
                self.transactions[action["txn"]["appId"]] = action["txn"]["version"]
            if "remove" in action:
                replaced.add(unquote(action["remove"]["path"]))
            if "add" in action:
                if (file := _added(action["add"])) is None:
                    return False
                added.append(file)
                # A file may be added again with other statistics.
                replaced.add(file[0])
        if replaced:
            new = pl.DataFrame([file for file in added if file[2]], FILES, orient="row")
            left = self.files.filter(~pl.col("path").is_in(replaced))
            self.files = pl.concat([left, new]).sort("min.lsn")
        return True


def _added(action: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """A file that a commit added, as FILES; None without its statistics."""
    statistics = json.loads(action.get("stats") or "{}")
    rows = statistics.get("numRecords")
    lowest, highest = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    first, last, event_time = lowest.get("lsn"), highest.get("lsn"), highest.get("event_time")
    if action.get("deletionVector") or rows is None or (rows and None in (first, last)):
        return None
    latest = None if event_time is None else datetime.fromisoformat(event_time)
    return unquote(action["path"]), action["size"], rows, first, last, latest
