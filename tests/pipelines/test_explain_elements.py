"""`weir explain` of one call of an event with several: its rows and those that repeat it, and no other call's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.journal.elements import FIELD
from jobs.streams import JOURNAL, USAGE, Table
from metering.instants import EPOCH

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
WHOLE = 0
Row = dict[str, Any]


def journal(*receptions: int) -> list[Row]:
    """The rows of an event that was received so often, with so many elements each time, behind another event."""
    rows: list[Row] = []
    for offset, elements in enumerate((2, *receptions)):
        name, first = ("t", 3) if offset else ("other", 1)
        for element in range(1, elements + 1) if elements else [WHOLE]:
            row = {"topic": "events", "partition": 0, "offset": offset, "source": "agent/1", "id": name, "account": "a"}
            row |= {"lsn": len(rows) + 1, "element": element, "first_lsn": first if offset > 1 else None}
            row |= {"request_id": f"r-{name}/{element}" if element else f"r-{name}"}
            row |= {"disposition": "accepted" if offset < 2 else "conflict", "value": b"{}" if element < 2 else None}
            rows.append({**row, "received_at": NOW, "event_time": NOW, "log_date": NOW.date(), "logged_at": NOW})
    return rows


def tables(folder: Path, rows: list[Row], billed: Row | None) -> Tables:
    """These rows, of which a request is `billed` or nothing is."""
    kinds = pa.schema([*(field.with_nullable(True) for field in JOURNAL), FIELD])
    write_deltalake(f"{folder}/journal", pa.Table.from_pylist(rows, schema=kinds))
    files = Files.of(DeltaTable(f"{folder}/journal"), Table.JOURNAL)
    if billed is None:
        return Tables(files, Files.none(Table.USAGE), None, 100)
    usage = {"lsn": 1, "account": "a", "request_id": billed["request_id"], "request_lsn": billed["lsn"]}
    usage |= {"completion_lsn": billed["lsn"], "event_time": NOW, "received_at": NOW, "day": NOW.date()}
    usage |= {"sign": 1, "cause": "stream", "outcome": "completed", "log_date": NOW.date(), "logged_at": NOW}
    usage_kinds = pa.schema([field.with_nullable(True) for field in USAGE])
    write_deltalake(f"{folder}/usage", pa.Table.from_pylist([usage], schema=usage_kinds))
    return Tables(files, Files.of(DeltaTable(f"{folder}/usage"), Table.USAGE), None, 100)


def told(tables: Tables, text: str) -> list[int]:
    return tables.of_id(text, Period(EPOCH)).records["lsn"].to_list()


@pytest.mark.parametrize("is_billed", [True, False])
@pytest.mark.parametrize("again", [12, 2, 14, WHOLE], ids=["again", "with fewer", "with more", "whole"])
def test_one_call_is_explained_with_what_repeats_it(tmp_path: Path, again: int, *, is_billed: bool) -> None:
    rows = journal(12, again, 12)
    of_event = [row for row in rows if row["id"] == "t"]
    for call in (1, 3, 12):
        mine = [row["lsn"] for row in of_event if row["element"] in (call, WHOLE)]
        billed = next(row for row in of_event if row["element"] == call)
        read = tables(tmp_path / str(call), rows, billed if is_billed else None)
        assert told(read, f"r-t/{call}") == mine
        assert told(read, "t") == [row["lsn"] for row in of_event]


def test_an_event_without_elements_is_explained_with_all_that_repeats_it(tmp_path: Path) -> None:
    rows = journal(WHOLE, 12, WHOLE)
    of_event = [row["lsn"] for row in rows if row["id"] == "t"]
    read = tables(tmp_path, rows, next(row for row in rows if row["id"] == "t"))
    assert told(read, "r-t") == told(read, "t") == of_event


def test_a_call_that_only_a_conflict_has_is_explained_alone(tmp_path: Path) -> None:
    rows = journal(2, 3)
    [more] = [row["lsn"] for row in rows if row["request_id"] == "r-t/3"]
    assert told(tables(tmp_path, rows, None), "r-t/3") == [more]
