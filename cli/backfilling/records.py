"""Files of past events: CloudEvents as lines of JSON, with or without gzip, or rows of Parquet."""

from __future__ import annotations

import gzip
import heapq
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from cli.lines import numbered, opened
from jobs.ingestion.receptions import MAX_CHARACTERS
from metering.instants import EPOCH, rfc3339
from metering.texts import encodable

ATTRIBUTE = "receivedtime"
"""The extension attribute of a CloudEvent that says when it was received first; without it that is its `time`."""
VALUE, RECEIVED = "value", ("first_received_at", "received_at")
"""The columns of Parquet: the CloudEvent, and its first receipt (the first of these columns that has a value)."""
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
BATCH_ROWS = 2_000
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class PastEvent:
    """A document of a file, its line there (in Parquet the row, from 1 on), and the mark that it is sent with."""

    file: int
    line: int
    document: bytes
    mark: str | None


@contextmanager
def past_events(files: list[str], max_bytes: int) -> Iterator[Iterator[PastEvent]]:
    """All documents, merged in the order of their marks, as far as each file is in that order.

    So requests in one file meet completions in another. `-` is standard input; a pipe has lines. A longer line is cut
    to its first `max_bytes`. Raises FileRefused for a file that cannot be opened, `typer.BadParameter` for an unknown
    format.
    """
    if files.count("-") > 1:
        raise typer.BadParameter("Standard input (-) can be read once.")
    with ExitStack() as held:
        parts = [_placed(number, held.enter_context(opened(file)), max_bytes) for number, file in enumerate(files)]
        yield (event for _, _, event in heapq.merge(*parts, key=lambda item: item[:2]))


def _placed(number: int, file: BinaryIO, max_bytes: int) -> Iterator[tuple[datetime, int, PastEvent]]:
    """Records without an instant, or with an earlier one, keep their place."""
    at = _EARLIEST
    for line, document, mark in _read(file, max_bytes):
        at = max(at, _instant(mark) or at)
        yield at, number, PastEvent(number, line, document, mark)


def _read(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes, str | None]]:
    if not file.seekable():
        # A pipe: what it is cannot be looked at before it is read.
        yield from _lines(file, max_bytes)
        return
    begins = file.read(4)
    file.seek(0)
    if begins == PARQUET:
        yield from _rows(file)
    elif begins.startswith(GZIP):
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from _lines(unpacked, max_bytes)  # type: ignore[arg-type]  # it reads as one
        except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
            raise typer.BadParameter(f"{_name(file)} cannot be unpacked: {problem}.") from None
    else:
        yield from _lines(file, max_bytes)


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes, str | None]]:
    for line, document in numbered(file, max_bytes):
        yield line, document, mark_of(document)


def _rows(file: BinaryIO) -> Iterator[tuple[int, bytes, str | None]]:
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        if VALUE not in names:
            raise typer.BadParameter(
                f"{_name(file)} has no column `{VALUE}` with the CloudEvent as text or bytes (it has "
                f"{', '.join(names) or 'none'})."
            )
        columns = [name for name in RECEIVED if name in names]
        line = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=[VALUE, *columns]):
            values = batch.column(VALUE).cast(pa.binary()).to_pylist()
            marks = [_marks(batch.column(name)) for name in columns]
            for at, value in enumerate(values):
                line += 1
                document = value or b""
                mark = next((column[at] for column in marks if column[at] is not None), None)
                yield line, document, mark_of(document) if mark is None else mark
    except pa.ArrowException as problem:
        raise typer.BadParameter(f"{_name(file)} cannot be read as Parquet: {problem}") from None


def _marks(column: pa.Array) -> list[str | None]:
    """What a column says, as the header has it; null where it says nothing. An instant without a zone is UTC.

    Instants are counted: Python knows neither all zones nor all years, and one of no year is none, as a text.
    """
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return [None if value is None else _cut(str(value)) for value in column.to_pylist()]
    counts = column.cast(pa.int64()).to_pylist()
    return [None if count is None else _counted(count, kind.unit) for count in counts]


def _counted(count: int, unit: str) -> str:
    try:
        return rfc3339(EPOCH + timedelta(microseconds=count * 1_000_000 // PER_SECOND[unit]))
    except OverflowError:
        return f"{count} {unit} since 1970"


def _name(file: BinaryIO) -> str:
    return encodable(Path(getattr(file, "name", "the file")).name)


def mark_of(document: bytes) -> str | None:
    """A CloudEvent's own first reception; None where it has no time at all, or cannot be read."""
    try:
        event = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    instant_text = event.get(ATTRIBUTE, event.get("time"))
    return (
        None
        if instant_text is None
        else _cut(instant_text if isinstance(instant_text, str) else json.dumps(instant_text))
    )


def _cut(text: str) -> str:
    """What is longer than any instant stays none, and fits a header."""
    return encodable(text, MAX_CHARACTERS + 1)


def _instant(mark: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(mark or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def several(events: Iterable[PastEvent], most: int, max_bytes: int) -> Iterator[list[PastEvent]]:
    """As many together as are validated at once."""
    found: list[PastEvent] = []
    size_bytes = 0
    for event in events:
        if found and (len(found) == most or size_bytes + len(event.document) > max_bytes):
            yield found
            found, size_bytes = [], 0
        found.append(event)
        size_bytes += len(event.document)
    if found:
        yield found
