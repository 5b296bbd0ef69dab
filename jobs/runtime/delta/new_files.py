"""Files of a table that a task, or the driver itself, writes and the driver commits: until then no reader sees them.

A file that is never committed is removed by `weir compact`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from obstore.exceptions import BaseError as StoreError
from obstore.store import ObjectStore
from pyarrow.fs import PyFileSystem

from jobs.runtime.delta.object_store import store_of
from jobs.runtime.delta.parquet import COMPRESSION, COMPRESSION_LEVEL, rows_of_a_page, statistics_of, with_dictionary
from metering.instants import EPOCH

LOG_DATE = "log_date"
EXCHANGE = "exchange"
"""The folder of what is on its way between tasks, or to the driver; no log names it. It begins without the underscore
of names that a vacuum of Delta passes over.
"""


@dataclass(frozen=True)
class NewFile:
    """A file of a table: its path below it, its bytes, when it was written (in milliseconds since 1970), its log date
    and the statistics of its rows.
    """

    path: str
    size: int
    written_ms: int
    log_date: str
    statistics: str

    def action(self) -> AddAction:
        """What a commit of delta-rs says of it."""
        partition = {LOG_DATE: self.log_date}
        return AddAction(self.path, self.size, partition, self.written_ms, data_change=True, stats=self.statistics)


@dataclass(frozen=True)
class Folder:
    """The folder of a table, and how its store is opened."""

    path: str
    options: dict[str, str] | None

    @cached_property
    def store(self) -> ObjectStore:
        """Opened once: with a client for each file each would have a connection of its own, too."""
        return store_of(self.path, os.environ)

    def __getstate__(self) -> dict[str, Any]:
        """What a task gets of it, which opens the store itself."""
        return {"path": self.path, "options": self.options}

    @property
    def files(self) -> PyFileSystem:
        """All files in it, in the log or not."""
        return PyFileSystem(DeltaStorageHandler(self.path, self.options))

    def put(self, path: str, data: pa.Buffer) -> None:
        """A new file, there as a whole or not at all.

        Raises OSError: of a task's error the driver sees the text, and waits for a store only then.
        """
        try:
            obstore.put(self.store, path, data.to_pybytes())
        except StoreError as error:
            raise OSError(str(error)) from None

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone are no error."""
        for path in paths:
            with suppress(FileNotFoundError):
                obstore.delete(self.store, path)

    def write(self, rows: pa.Table, logged_at: datetime, statistics: frozenset[str]) -> NewFile:
        """Rows that are logged at that instant, in one group, and for the log `statistics` of those columns; the
        file has them of all. Their log date is no column of it, as in those that delta-rs writes.
        """
        log_date = logged_at.astimezone(UTC).date()
        path = f"{LOG_DATE}={log_date.isoformat()}/part-{uuid.uuid4()}.{COMPRESSION.lower()}.parquet"
        kept = rows.drop_columns([LOG_DATE])
        data = pa.BufferOutputStream()
        pq.write_table(
            kept,
            data,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            row_group_size=max(1, len(kept)),
            use_dictionary=with_dictionary(kept.schema),
            write_batch_size=rows_of_a_page(kept),
        )
        written = data.getvalue()
        self.put(path, written)
        written_ms = (logged_at - EPOCH) // timedelta(milliseconds=1)
        of_rows = json.dumps(statistics_of(kept, statistics))
        return NewFile(path, written.size, written_ms, log_date.isoformat(), of_rows)


@dataclass(frozen=True)
class Exchanged:
    """The files that the driver of one epoch exchanges with its tasks, beside those of a table."""

    folder: Folder
    epoch: int

    def new_path(self, kind: str) -> str:
        """A name that no other file has: each attempt of a task has its own."""
        return f"{EXCHANGE}/{self.epoch}-{kind}-{uuid.uuid4()}.arrow"

    def clear(self) -> None:
        """Remove the files of this driver and of earlier ones: a zombie must leave those of its successor."""
        listed = [str(file["path"]) for files in obstore.list(self.folder.store, f"{EXCHANGE}/") for file in files]
        self.folder.remove(path for path in listed if _epoch_of(path) <= self.epoch)


@contextmanager
def cleaned_up(remove: Callable[[], None]) -> Iterator[None]:
    """Call `remove` at the end. After an error that one is raised, also where the store cannot remove files now."""
    try:
        yield
    except BaseException:
        with suppress(StoreError, OSError):
            remove()
        raise
    remove()


def _epoch_of(path: str) -> int:
    """Of a file on its way; 0 of one that a release wrote which put none into its name."""
    epoch = path.rpartition("/")[2].partition("-")[0]
    return int(epoch) if epoch.isdigit() else 0
