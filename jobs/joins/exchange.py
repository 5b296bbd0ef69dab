"""Rows on their way between tasks: files of Arrow beside those of usage, in the store that all executors see.

No log names them. The driver removes them with its batch; those of a driver that was killed `weir compact` removes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from jobs.joins.memory import KEY
from jobs.runtime.delta.new_files import EXCHANGE, Folder

HASHED_ROWS = 50_000
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OF_BYTE = np.arange(1, 257, dtype=np.uint64) ** np.uint64(3) * _ODD


@dataclass(frozen=True)
class Exchange:
    """The files, in the folder of the table usage."""

    folder: Folder

    @contextmanager
    def writing(self, kind: str, schema: pa.Schema) -> Iterator[Writing]:
        """A new file that gets one batch after another. Each attempt of a task has its own."""
        path = f"{EXCHANGE}/{kind}-{uuid.uuid4()}.arrow"
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        data = pa.BufferOutputStream()
        with pa.ipc.new_file(data, schema, options=options) as writer:
            yield Writing(path, writer)
        self.folder.put(path, data.getvalue())

    def read(self, path: str, numbers: Iterable[int] | None = None) -> pl.DataFrame:
        """These batches of a file (None: all), one after another."""
        with self.folder.files.open_input_file(path) as stream:
            reader = pa.ipc.open_file(stream)
            wanted = range(reader.num_record_batches) if numbers is None else numbers
            batches = [reader.get_batch(number) for number in wanted]
            return pl.DataFrame(pa.Table.from_batches(batches, reader.schema))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone are no error."""
        self.folder.remove(paths)


@dataclass(frozen=True)
class Writing:
    """A file that is being written."""

    path: str
    _writer: pa.ipc.RecordBatchFileWriter

    def add(self, rows: pl.DataFrame) -> None:
        """One more batch, also where it has no rows."""
        table = plain_arrow(rows)
        batches = table.combine_chunks().to_batches()
        self._writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))


def plain_arrow(rows: pl.DataFrame) -> pa.Table:
    """Without views: a view into a text would take the whole text along."""
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


def part_of(rows: pl.DataFrame, parts: int) -> pl.Series:
    """Which of so many parts each row (KEY) belongs to, by its key: the same on every machine and in every release.

    (A hash of Polars is neither: it depends on the processor.)
    """
    account, request_id = (
        np.concatenate(
            [_hashed(rows[name].slice(first, HASHED_ROWS)) for first in range(0, len(rows), HASHED_ROWS) or [0]]
        )
        for name in KEY
    )
    hashed = request_id * _ODD + account
    hashed ^= hashed >> np.uint64(32)
    return pl.Series("part", (hashed % np.uint64(parts)).astype(np.uint32))


def _hashed(texts: pl.Series) -> np.ndarray:
    """A sum over the bytes of each text."""
    values = texts.fill_null("").rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.large_string())
    if not len(values):
        return np.zeros(0, np.uint64)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    used = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.zeros(0, np.uint8)
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_OF_BYTE[used], dtype=np.uint64)])
    ends = ends - ends[0]
    sums: np.ndarray = totals[ends[1:]] - totals[ends[:-1]]
    return sums
