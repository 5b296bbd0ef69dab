"""A commit of new files, put into a table's log as one object: nothing of the table is read for it.

delta-rs goes through the list of all live files with each commit, so that one costs more the more a day has had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import obstore
from deltalake import DeltaTable
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from jobs.runtime.delta.new_files import LOG_DATE, NewFile
from metering.instants import EPOCH

OLDEST_WRITER = 2
"""Of a table whose commits need no more than their files: features of later ones (constraints, row tracking, change
feeds, column mapping, timestamps of commits) are delta-rs's to respect or to refuse.
"""
ENGINE = "weir"


def may_commit(table: DeltaTable) -> bool:
    """Whether a commit of such a table is what `put_commit` writes."""
    return int(table.protocol().min_writer_version) <= OLDEST_WRITER


def put_commit(
    store: ObjectStore,
    version: int,
    files: Sequence[NewFile],
    transactions: Mapping[str, int],
    now: datetime,
) -> bool:
    """Have the log of the table at `store`, partitioned by log date, go on with this version, which adds the files.

    False: it has that version already, of another who was faster. After an error the outcome is unknown.
    """
    lines = _actions(files, transactions, now)
    content = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    try:
        obstore.put(store, f"_delta_log/{version:020d}.json", content.encode(), mode="create")
    except AlreadyExistsError:
        return False
    return True


def _actions(files: Sequence[NewFile], transactions: Mapping[str, int], now: datetime) -> Iterator[Mapping[str, Any]]:
    parameters = {"mode": "Append", "partitionBy": json.dumps([LOG_DATE])}
    yield {
        "commitInfo": {
            "timestamp": (now - EPOCH) // timedelta(milliseconds=1),
            "operation": "WRITE",
            "operationParameters": parameters,
            "engineInfo": ENGINE,
        }
    }
    for file in files:
        yield {"add": _entry(file)}
    for name, version in transactions.items():
        yield {"txn": {"appId": name, "version": version}}


def _entry(file: NewFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "partitionValues": {LOG_DATE: file.log_date},
        "size": file.size,
        "modificationTime": file.written_ms,
        "dataChange": True,
        "stats": file.statistics,
    }
