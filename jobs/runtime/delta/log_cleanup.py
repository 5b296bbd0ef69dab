"""Removes expired files of a Delta log, beside the commits and not inside them.

A commit every five seconds leaves 17,000 files a day, and every commit or read lists them all.
"""

from __future__ import annotations

import threading

import structlog

from jobs.runtime.delta.table import open_table
from jobs.streams import Table

log = structlog.get_logger()

CLEAN_EVERY_SECONDS = 1_800.0


class LogCleanup:
    """Cleans one table's log at the start and every half hour, in a thread of its own, until it is closed."""

    def __init__(self, tables: str, table: Table, every_seconds: float = CLEAN_EVERY_SECONDS) -> None:
        self._tables = tables
        self._table = table
        self._every_seconds = every_seconds
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"log cleanup of {table}", daemon=True).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                clean_log(self._tables, self._table)
            except Exception as error:  # noqa: BLE001 -- a store that is away: what is left goes the next time
                log.warning("the log was not cleaned", table=self._table, reason=str(error))
            self._closed.wait(self._every_seconds)

    def close(self) -> None:
        """End the thread once it has done what it is doing."""
        self._closed.set()


def clean_log(tables: str, table: Table) -> None:
    """Delete the log files older than the table's setting, except those since the last checkpoint before it."""
    found = open_table(tables, table)
    if found is not None:
        found.cleanup_metadata()
