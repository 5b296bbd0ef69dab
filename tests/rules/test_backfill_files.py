"""Files of past events: lines, packed lines and Parquet say the same, in the order of when they were received first."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from cli.backfilling.records import PastEvent, mark_of, past_events, several
from cli.backfilling.sending import IsClosed
from deployment.errors import FileRefused
from jobs.ingestion.receptions import MAX_CHARACTERS
from metering.instants import rfc3339

T0 = datetime(2024, 5, 1, tzinfo=UTC)


def event(second: int, **more: Any) -> bytes:
    return json.dumps({"id": f"{second}", "time": rfc3339(T0 + timedelta(seconds=second)), **more}).encode()


def read(*files: Path | str) -> list[PastEvent]:
    with past_events([str(file) for file in files], 1 << 20) as events:
        return list(events)


def test_plain_and_compressed_lines_and_parquet_give_the_same_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [event(1), event(2, receivedtime="2024-05-02T00:00:00+02:00"), b"{", b"", event(3)]
    marks = [rfc3339(T0 + timedelta(seconds=1)), "2024-05-02T00:00:00+02:00", None, None, None]
    marks[4] = rfc3339(T0 + timedelta(seconds=3))
    data = b"\n".join(documents) + b"\n"
    (tmp_path / "lines").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data))
    pq.write_table(pa.table({"value": [d.decode() for d in documents]}), tmp_path / "texts")
    pq.write_table(pa.table({"other": range(5), "value": pa.array(documents, pa.binary())}), tmp_path / "bytes")
    expected = [PastEvent(0, line, *said) for line, said in enumerate(zip(documents, marks, strict=True), start=1)]
    # A blank line is no event; a row of Parquet is one, whatever it holds.
    of_lines = [one for one in expected if one.document]
    for name in ("lines", "packed", "texts", "bytes"):
        assert read(tmp_path / name) == (of_lines if name in ("lines", "packed") else expected), name
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read("-") == of_lines
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[data])
    writer.start()
    assert read(tmp_path / "pipe") == of_lines
    writer.join()


def test_a_column_of_first_receipt_wins_over_the_event(tmp_path: Path) -> None:
    """So the files of another journal are history."""
    columns = {
        "value": [event(1), event(2), event(3)],
        "received_at": pa.array([T0, T0, None], pa.timestamp("us", "UTC")),
        "first_received_at": pa.array([None, T0 - timedelta(days=1), None], pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), tmp_path / "journal")
    expected = [rfc3339(T0), rfc3339(T0 - timedelta(days=1)), rfc3339(T0 + timedelta(seconds=3))]
    assert [one.mark for one in read(tmp_path / "journal")] == expected
    nanoseconds = pa.array([T0.replace(tzinfo=None)]).cast(pa.timestamp("ns"))
    for column in (pa.array([T0.replace(tzinfo=None)]), nanoseconds, pa.array([rfc3339(T0)])):
        pq.write_table(pa.table({"value": [event(1)], "received_at": column}), tmp_path / "bare")
        assert [one.mark for one in read(tmp_path / "bare")] == [rfc3339(T0)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+02:00", "Mars/Olympus"])
def test_an_instant_of_a_column_is_read_in_any_unit_and_zone(tmp_path: Path, unit: str, zone: str | None) -> None:
    of_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    counted = pa.array([1_714_521_600 * of_second, None, -of_second], pa.int64()).cast(pa.timestamp(unit, zone))
    pq.write_table(pa.table({"value": [event(1)] * 3, "received_at": counted}), tmp_path / "file")
    said = [rfc3339(T0), rfc3339(T0 + timedelta(seconds=1)), "1969-12-31T23:59:59Z"]
    assert [one.mark for one in read(tmp_path / "file")] == said


@pytest.mark.parametrize(
    ("unit", "count"), [("ms", 2**62), ("ms", 1_714_521_600_000_000), ("us", 2**62), ("us", -(2**62))]
)
def test_an_instant_of_an_impossible_year_is_invalid_and_ends_nothing(tmp_path: Path, unit: str, count: int) -> None:
    """Microseconds in a column of milliseconds, say: that row is refused, and all others are sent."""
    counted = pa.array([count, 0], pa.int64()).cast(pa.timestamp(unit))
    pq.write_table(pa.table({"value": [event(1)] * 2, "received_at": counted}), tmp_path / "file")
    assert [one.mark for one in read(tmp_path / "file")] == [f"{count} {unit} since 1970", "1970-01-01T00:00:00Z"]


@given(st.lists(st.lists(st.integers(0, 99) | st.none(), max_size=8), min_size=1, max_size=4), st.booleans())
def test_files_are_read_side_by_side_and_nothing_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[int | None]], is_sorted: bool
) -> None:
    folder = tmp_path_factory.mktemp("files")
    parts = [sorted(part, key=lambda s: s or 0) if is_sorted else part for part in drawn]
    for number, part in enumerate(parts):
        lines = [b"{" if second is None else event(second) for second in part]
        (folder / f"{number}").write_bytes(b"".join(line + b"\n" for line in lines))
    found = read(*[folder / f"{number}" for number in range(len(parts))])
    # Each file in its order, whatever order that is.
    for number, part in enumerate(parts):
        assert [one.line for one in found if one.file == number] == list(range(1, len(part) + 1))
    if is_sorted and not any(second is None for part in parts for second in part):
        assert [one.mark for one in found] == sorted(one.mark or "" for one in found)


@pytest.mark.parametrize("mark", ["x" * 10_000, 7, True, {"a": "\ud800"}, ["\ud800" * 99]])
def test_what_is_no_instant_stays_none_and_fits_a_header(mark: Any) -> None:
    said = mark_of(event(1, receivedtime=mark))
    assert said is not None
    assert len(said) <= MAX_CHARACTERS + 1
    with pytest.raises(ValueError, match="isoformat"):
        datetime.fromisoformat(said)


def test_a_file_of_another_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "without")
    (tmp_path / "broken").write_bytes(b"PAR1 and no more")
    (tmp_path / "cut").write_bytes(gzip.compress(event(1) * 9_999)[:-20])
    for name, says in (("without", "has no column `value`"), ("broken", "as Parquet"), ("cut", "cannot be unpacked")):
        with pytest.raises(typer.BadParameter, match=says):
            read(tmp_path / name)
    with pytest.raises(typer.BadParameter, match="once"):
        read("-", "-")
    with pytest.raises(FileRefused, match="cannot be read"):
        read(tmp_path / "absent")


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 5), st.integers(1, 60))
def test_a_batch_is_limited_in_events_and_bytes_or_has_one_event(sizes: list[int], most: int, max_bytes: int) -> None:
    events = [PastEvent(0, number, b"x" * size, None) for number, size in enumerate(sizes)]
    parts = list(several(iter(events), most, max_bytes))
    assert [one for part in parts for one in part] == events
    assert all(len(part) <= most for part in parts)
    assert all(len(part) == 1 or sum(len(one.document) for one in part) <= max_bytes for part in parts)


def test_a_minute_has_closed_by_its_end_unless_it_was_billed_elsewhere() -> None:
    end = T0 + timedelta(minutes=1)
    for closed_until, history_until, says in (
        (None, None, False),
        (end - timedelta(microseconds=1), None, False),
        (end, None, True),
        (end, end, False),
        (end, end - timedelta(microseconds=1), True),
    ):
        assert IsClosed(closed_until, history_until)(T0) is says
