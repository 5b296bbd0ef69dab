"""What joins remembers, in files by part of the keys: between two large batches it does not pass through the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from jobs.joins.exchange import Exchange, part_of, plain_arrow
from jobs.joins.memory import DECIDED, Memory, Schema, key_hash

STORED = tuple(name for name in DECIDED if name != "key_hash")
"""A hash of Polars is not the same on each machine."""


@dataclass(frozen=True)
class Place:
    """One batch of a file."""

    path: str
    number: int


@dataclass(frozen=True)
class Part:
    """The memory of the keys of one part: where it is, and what `Memory` says of itself."""

    rows: Place
    decided: Place
    waiting: int
    lowest_lsn: int
    records: int
    bytes: int

    def read(self, exchange: Exchange) -> Memory:
        """As it was written."""
        rows = exchange.read(self.rows.path, [self.rows.number])
        decided = exchange.read(self.decided.path, [self.decided.number]).with_columns(key_hash())
        return Memory(rows, (decided.select(DECIDED),) if len(decided) else ())


@dataclass(frozen=True)
class SpreadMemory:
    """All parts; says of itself what `Memory` does."""

    exchange: Exchange
    schema: Schema
    parts: tuple[Part, ...]

    def gathered(self) -> Memory:
        """All of it, in the driver."""
        read = [part.read(self.exchange) for part in self.parts]
        rows = pl.concat([memory.rows for memory in read])
        return Memory(rows.sort("lsn"), tuple(found for memory in read for found in memory.decided))

    def waiting(self) -> dict[str, int]:
        """As `Memory.waiting`."""
        lowest = [part.lowest_lsn for part in self.parts if part.waiting]
        return {"waiting": sum(part.waiting for part in self.parts), "waiting.lsn": min(lowest, default=0)}

    def records(self) -> int:
        """As `Memory.records`."""
        return sum(part.records for part in self.parts)

    def size_bytes(self) -> int:
        """As `Memory.size_bytes`."""
        return sum(part.bytes for part in self.parts)

    @property
    def paths(self) -> set[str]:
        """The files."""
        return {place.path for part in self.parts for place in (part.rows, part.decided)}


def spread(memory: Memory, parts: int, exchange: Exchange) -> SpreadMemory:
    """The driver's memory in so many parts."""
    decided = pl.concat([part.select(STORED) for part in memory.decided]) if memory.decided else _no_decided(memory)
    of_rows, of_decided = (list(_parts(rows, parts)) for rows in (memory.rows, decided))
    written = write(exchange, of_rows, of_decided)
    return SpreadMemory(exchange, memory.schema, tuple(written))


def written_part(memory: Memory, exchange: Exchange) -> Part:
    """The memory of one part, after a batch."""
    decided = pl.concat([part.select(STORED) for part in memory.decided]) if memory.decided else _no_decided(memory)
    (part,) = write(exchange, [memory.rows], [decided])
    return replace(part, bytes=memory.size_bytes())


def write(exchange: Exchange, rows: list[pl.DataFrame], decided: list[pl.DataFrame]) -> list[Part]:
    """A part for each of these."""
    with exchange.writing("waiting", plain_arrow(rows[0].clear()).schema) as file:
        for part in rows:
            file.add(part)
    with exchange.writing("decided", plain_arrow(decided[0].clear()).schema) as other:
        for part in decided:
            other.add(part)
    return [
        Part(
            Place(file.path, number),
            Place(other.path, number),
            len(waits),
            int(waits["lsn"].min() or 0),  # type: ignore[arg-type]
            len(waits) + len(known),
            int(waits.estimated_size() + known.estimated_size()),
        )
        for number, (waits, known) in enumerate(zip(rows, decided, strict=True))
    ]


def _no_decided(memory: Memory) -> pl.DataFrame:
    return memory.rows.select(STORED).clear()


def _parts(rows: pl.DataFrame, parts: int) -> Iterator[pl.DataFrame]:
    place = part_of(rows, parts)
    for number in range(parts):
        yield rows.filter(place == number)
