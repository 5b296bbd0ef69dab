"""What became of one event, by its source and id: of its records, those that repeat it, and no other source's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from cli.reading import read_only
from jobs.explain.of_id import Look, explain_event
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.windows import MINUTE
from tests.pipelines.billing import NOON
from tests.pipelines.explaining import bill_all, commit, record

Row = dict[str, Any]
LONG = timedelta(days=100_000)
EVENT: Row = {"source": "gw/a", "id": "e-1", "account": "acme", "request_id": "r-1", "type": "t", "event_time": NOON}
REJECTED: Row = {**EVENT, "disposition": "rejected", "reason": "future", "request_id": None}


def document(database: str, tables: Path, rows: list[Row], account: str | None = None, **of: str) -> Any:
    """Of these journal rows, numbered from 1 on, one minute after another."""
    bill_all(database)
    commit(tables, Table.JOURNAL, [record(lsn, NOON + lsn * MINUTE, **row) for lsn, row in enumerate(rows, 1)])
    whose = None if account is None else (pl.col("account") == account).fill_null(False)
    identity = {"source": "gw/a", "id_": "e-1", **of}
    with read_only(database) as connection:
        return explain_event(
            connection, lambda table: open_table(str(tables), table), **identity, look=Look(whose, LONG, 20)
        )


def again(kind: str) -> Row:
    return {**EVENT, "disposition": kind, "first_lsn": 1}


@pytest.mark.parametrize(
    ("rows", "lsn", "expected"),
    [
        ([EVENT], 1, {"disposition": "accepted", "request_ids": ["r-1"], "duplicates": 0, "conflicts": 0}),
        ([EVENT, again("duplicate"), again("conflict"), again("duplicate")], 1, {"duplicates": 2, "conflicts": 1}),
        ([REJECTED], 1, {"disposition": "rejected", "reason": "future", "request_ids": []}),
        ([REJECTED, {**REJECTED, "reason": "too_old"}], 2, {"disposition": "rejected", "reason": "too_old"}),
        ([REJECTED, EVENT], 2, {"disposition": "accepted", "reason": None, "request_ids": ["r-1"]}),
        ([{**EVENT, "account": "bolt"}, again("conflict")], 2, {"disposition": "conflict", "conflicts": 1}),
    ],
    ids=["accepted", "repeated", "rejected", "rejected_twice", "redriven", "first_is_of_another_account"],
)
def test_an_event_is_what_its_records_make_it(
    database: str, tmp_path: Path, rows: list[Row], lsn: int, expected: Row
) -> None:
    found = document(database, tmp_path, rows, account="acme")["event"]
    assert {name: found[name] for name in expected} == expected
    assert (found["source"], found["id"], found["account"]) == ("gw/a", "e-1", "acme")
    assert found["received_at"] == NOON + lsn * MINUTE


def test_an_event_of_another_source_or_account_is_none(database: str, tmp_path: Path) -> None:
    rows = [{**EVENT, "source": "gw/b"}, {**EVENT, "account": "bolt"}, {**EVENT, "account": None, "id": "e-2"}]
    assert document(database, tmp_path, rows, account="acme") is None


def test_of_several_sources_one_is_shown(database: str, tmp_path: Path) -> None:
    others = {**EVENT, "source": "gw/b", "request_id": "r-2"}, {**EVENT, "id": "x"}
    found = document(database, tmp_path, [others[0], EVENT, others[1]])
    assert [row["lsn"] for row in found["records"]] == [2]
    assert found["event"]["request_ids"] == ["r-1"]
