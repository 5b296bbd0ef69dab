"""What `events.ordered` sends of its events: read from the files of a step, and held for the next ones within bytes.

A file of Parquet never changes, and erasure writes others in its place. So what was read of a file is what it has for
as long as the table has the file, and goes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, repeat, takewhile
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

MAX_BYTES_HELD = 32 << 20
"""Of events, and of what Python needs for each."""
OBJECT_BYTES = 400
"""About what Python needs for one besides its event."""
BATCH_BYTES, BATCH_ROWS = 1 << 20, 8_192
"""Of a file, decoded at once."""
WHOLE_FILE_BYTES = 4 << 20
"""A file that is stored in so many is read with one request, and others by as many."""
COLUMNS = {
    "lsn": pl.Int64(),
    "source": pl.String(),
    "account": pl.String(),
    "topic": pl.String(),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "value": pl.Binary(),
}
Header = tuple[str, bytes]


Content = tuple[int, bool, int, str, bytes, bytes | None, tuple[Header, Header], bytes]
"""What a record has of its row: `place_us` and `is_late`, by which it comes (`order.upcoming`), the size of the event,
the file, the key, the event (None where it was erased, or is part of another row's), where it came from, the offset.

A plain tuple, made by `zip`: what is made for each event is most of what publishing it costs.
"""
SIZE: Final = 2
PATH: Final = 3
VALUE: Final = 5
"""Places in it."""


class HeldContents:
    """Contents by lsn, of those that come next as many as have `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES_HELD) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._held: dict[int, Content] = {}

    def missing(self, lsns: Iterable[int]) -> list[int]:
        """Those that are not held."""
        return [lsn for lsn in lsns if lsn not in self._held]

    def first(self, lsns: Sequence[int], max_bytes: int) -> list[Content | None]:
        """The first of these, of which the events have at most so many bytes, at least one; None is not held."""
        found = [*map(self._held.get, lsns)]
        sizes = accumulate(0 if content is None else content[SIZE] for content in found)
        return found[: max(1, sum(1 for _ in takewhile(lambda total: total <= max_bytes, sizes)))]

    def put(self, contents: Mapping[int, Content]) -> None:
        """Hold them by lsn, until `trim` beyond `max_bytes`."""
        new = {lsn: content for lsn, content in contents.items() if lsn not in self._held}
        self._held |= new
        self.bytes += sum(content[SIZE] for content in new.values()) + len(new) * OBJECT_BYTES

    def trim(self, next_lsns: Sequence[int]) -> Sequence[int]:
        """Drop what is too much: what comes last of the others, and then the last of these. Returns those of them up to
        the first that was dropped.
        """
        if self.bytes <= self.max_bytes:
            return next_lsns
        of_next = set(next_lsns)
        others = [(place_us, not is_late, lsn) for lsn, (place_us, is_late, *_) in self._held.items()]
        for _, _, lsn in sorted(others, reverse=True):
            if self.bytes <= self.max_bytes:
                return next_lsns
            if lsn not in of_next:
                self.drop([lsn])
        end = len(next_lsns)
        while self.bytes > self.max_bytes and end > 1:
            end -= 1
            self.drop([next_lsns[end]])
        return next_lsns[:end]

    def drop(self, lsns: Iterable[int]) -> None:
        """Without them."""
        gone = [content for lsn in lsns if (content := self._held.pop(lsn, None)) is not None]
        self.bytes -= sum(content[SIZE] for content in gone) + len(gone) * OBJECT_BYTES

    def retain(self, paths: Collection[str]) -> None:
        """Drop those of all other files."""
        self.drop([lsn for lsn, content in self._held.items() if content[PATH] not in paths])


class ContentFile:
    """A file of the journal whose contents are read a part at a time."""

    def __init__(self, path: str, file: pq.ParquetFile, batch_bytes: int = BATCH_BYTES) -> None:
        self._path = path
        self._file = file
        self._batch_bytes = batch_bytes
        names = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
        self._columns = [name for name in COLUMNS if name in names]
        self._lsn, self._value = names.index("lsn"), names.index("value")
        self._groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        bytes_of_events = sum(group.column(self._value).total_uncompressed_size for group in self._groups)
        self._mean_bytes = int(bytes_of_events // max(1, file.metadata.num_rows))

    def rows_within(self, max_bytes: int) -> int:
        """About how many contents have so many bytes, by the mean of the file; at least one."""
        return max(1, max_bytes // (self._mean_bytes + OBJECT_BYTES))

    def read(self, wanted: pl.DataFrame) -> Iterator[dict[int, Content]]:
        """The contents of these events (`order.upcoming`)."""
        rows = min(BATCH_ROWS, max(1, self._batch_bytes // max(1, self._mean_bytes)))
        left = len(wanted)
        for batch in self._file.iter_batches(rows, self._groups_of(wanted["lsn"]), self._columns, use_threads=False):
            found = _with_columns(pl.DataFrame(batch)).join(wanted, on="lsn", how="inner")
            left -= len(found)
            yield _contents(found, self._path)
            if not left:
                return

    def _groups_of(self, lsns: pl.Series) -> list[int]:
        """The row groups that may have any of these, by their statistics."""
        ordered = lsns.sort()
        found = []
        for number, group in enumerate(self._groups):
            known = group.column(self._lsn).statistics
            if known is not None and known.has_min_max:
                low, high = ordered.search_sorted(known.min, "left"), ordered.search_sorted(known.max, "right")
                if low >= high:
                    continue
            found.append(number)
        return found


@contextmanager
def opened(
    table: DeltaTable,
    path: str,
    file_bytes: int,
    *,
    batch_bytes: int = BATCH_BYTES,
    whole_file_bytes: int = WHOLE_FILE_BYTES,
) -> Iterator[ContentFile]:
    """A file of so many bytes, as it is stored; about `batch_bytes` of it are decoded at once. Raises OSError."""
    files = PyFileSystem(DeltaStorageHandler(table.table_uri, table._storage_options))
    is_small = file_bytes <= whole_file_bytes
    with files.open_input_file(path) as source:
        # Not a whole column at once: events may be large, and as stored they may be small.
        content = pa.BufferReader(source.read()) if is_small else source
        with pq.ParquetFile(content, buffer_size=0 if is_small else whole_file_bytes, pre_buffer=False) as file:
            yield ContentFile(path, file, batch_bytes)


def _with_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """COLUMNS, with those null that the file lacks."""
    missing = [pl.lit(None, kind).alias(name) for name, kind in COLUMNS.items() if name not in rows.columns]
    return rows.with_columns(missing) if missing else rows


def _contents(rows: pl.DataFrame, path: str) -> dict[int, Content]:
    key = pl.coalesce("account", "source").cast(pl.Binary).alias("key")
    size = pl.col("value").bin.size().fill_null(0).alias("size")
    offset = pl.col("offset").cast(pl.String).cast(pl.Binary)
    columns = rows.select("lsn", "place_us", "is_late", size, key, "value", "topic", "partition", offset).iter_columns()
    lsns, places, late, sizes, keys, values, topics, partitions, offsets = (column.to_list() for column in columns)
    contents = zip(places, late, sizes, repeat(path), keys, values, map(_came_from, topics, partitions), offsets)
    return dict(zip(lsns, contents, strict=True))


@cache
def _came_from(topic: str, partition: int) -> tuple[Header, Header]:
    return ("weir-topic", topic.encode()), ("weir-partition", b"%d" % partition)
