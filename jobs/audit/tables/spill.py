"""Rows by bucket: as bytes between Spark's tasks and the driver, and on disk, so no process holds all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from jobs.audit.tables.versions import arrow

SHIPPED = pl.Schema({"bucket": pl.Int64(), "part": pl.String(), "data": pl.Binary()})
"""Rows of a part (a table's name) that are of one bucket; `data` is what `pack` made of them."""
_LENGTH_BYTES = 8


def pack(rows: pl.DataFrame) -> bytes:
    """A frame as bytes, a tenth of its size."""
    sink = BytesIO()
    rows.write_ipc(sink, compression="lz4")
    return sink.getvalue()


def unpack(data: bytes) -> pl.DataFrame:
    """The frame of which `pack` made these bytes."""
    return pl.read_ipc(BytesIO(data), use_pyarrow=False)


def by_bucket(rows: pl.DataFrame, bucket: pl.Expr) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each bucket that has any."""
    for (number,), of_bucket in rows.group_by(bucket.alias("_bucket"), maintain_order=True):
        yield int(number), of_bucket.select(rows.columns)


def shipped(parts: dict[str, tuple[pl.DataFrame, pl.Expr]]) -> pl.DataFrame:
    """The rows of each part, and their bucket → SHIPPED."""
    made = [
        (number, part, pack(of_bucket))
        for part, (rows, bucket) in parts.items()
        for number, of_bucket in by_bucket(rows, bucket)
    ]
    return pl.DataFrame(made, schema=SHIPPED, orient="row")


def as_batches(rows: pl.DataFrame) -> list[pa.RecordBatch]:
    """SHIPPED, as Spark wants it."""
    return list(rows.to_arrow().cast(arrow(SHIPPED)).to_batches())


def gather(made: DataFrame, buckets: int) -> Iterator[tuple[int, dict[str, pl.DataFrame]]]:
    """SHIPPED of many tasks → one bucket after the other, with the rows of each part that it has."""
    rows = made.repartition(buckets, "bucket").sortWithinPartitions("bucket").toLocalIterator()
    yield from by_part((row["bucket"], row["part"], bytes(row["data"])) for row in rows)


def by_part(rows: Iterable[tuple[int, str, bytes]]) -> Iterator[tuple[int, dict[str, pl.DataFrame]]]:
    """SHIPPED in the order of buckets → the rows of each part of each bucket."""
    for bucket, of_bucket in groupby(rows, key=itemgetter(0)):
        parts: dict[str, list[pl.DataFrame]] = {}
        for _, part, data in of_bucket:
            parts.setdefault(part, []).append(unpack(data))
        yield bucket, {part: pl.concat(frames) for part, frames in parts.items()}


@dataclass(frozen=True)
class Spilled:
    """Rows in files of a folder, one for each part and bucket."""

    folder: Path

    def add(self, part: str, rows: pl.DataFrame, bucket: pl.Expr) -> None:
        """Append rows, each to its bucket."""
        for number, of_bucket in by_bucket(rows, bucket):
            data = pack(of_bucket)
            with self._file(part, number).open("ab") as file:
                file.write(len(data).to_bytes(_LENGTH_BYTES))
                file.write(data)

    def pieces(self, part: str, bucket: int) -> Iterator[pl.DataFrame]:
        """The rows of one bucket as they were added."""
        if not (path := self._file(part, bucket)).exists():
            return
        with path.open("rb") as file:
            while length := file.read(_LENGTH_BYTES):
                yield unpack(file.read(int.from_bytes(length)))

    def rows(self, part: str, bucket: int, schema: pl.Schema) -> pl.DataFrame:
        """All rows of one bucket."""
        return pl.concat([pl.DataFrame(schema=schema), *self.pieces(part, bucket)])

    def _file(self, part: str, bucket: int) -> Path:
        return self.folder / f"{part}-{bucket}"
