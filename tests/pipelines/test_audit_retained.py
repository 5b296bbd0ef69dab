"""What the audit takes for removed: only what `weir retain` has removed, whole days from the old end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from jobs.audit.tables.retained import has_each_once, retained_rows
from jobs.retention.tables import _remove
from jobs.runtime.delta.table import LSN, REMOVED
from jobs.streams import USAGE

Row = dict[str, Any]
RULES = '{"in_force": []}'


def row(lsn: int, day: int, rules: str | None = None) -> Row:
    at = datetime(2026, 1, day, 12, tzinfo=UTC)
    said = {"log_date": at.date(), "logged_at": at, "received_at": at, "event_time": at, "rules": rules}
    return {"lsn": lsn, "account": "a", "request_id": f"r{lsn}", "outcome": "abandoned", "request_lsn": lsn} | (
        {"sign": 1, "cause": "stream", **said}
    )


ROWS = [
    *(row(1, 1, RULES), row(2, 1), row(3, 1)),
    *(row(4, 2, RULES), row(5, 2), row(6, 3, RULES)),
    *(row(7, 4, RULES), row(8, 4), row(9, 4)),
]
"""Of 3 January there is only the row that says rules."""


def table(folder: Path, rows: Iterable[Row], *, is_counted: bool) -> DeltaTable:
    path = str(folder / "usage")
    transactions = [Transaction(LSN, 10), *([Transaction(REMOVED, 0)] if is_counted else [])]
    write_deltalake(
        path,
        pa.Table.from_pylist(list(rows), USAGE),
        partition_by=["log_date"],
        commit_properties=CommitProperties(app_transactions=transactions),
    )
    return DeltaTable(path)


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "of a release that did not count"])
def test_days_that_retention_removed_are_no_loss_also_with_a_quiet_day_after_them(
    tmp_path: Path, is_counted: bool
) -> None:
    found = table(tmp_path, ROWS, is_counted=is_counted)
    assert (retained_rows(found).since, retained_rows(found).missing) == (None, 0)
    _remove(found, date(2026, 1, 1), 3)
    left = DeltaTable(found.table_uri)
    said = retained_rows(left)
    assert (said.since, said.missing, has_each_once(left, said)) == (date(2026, 1, 2), 0, True)


@pytest.mark.parametrize("lost", [1, 2, 5, 9])
def test_a_row_that_retention_did_not_remove_is_missing(tmp_path: Path, lost: int) -> None:
    said = retained_rows(table(tmp_path, [row for row in ROWS if row["lsn"] != lost], is_counted=True))
    assert said.missing == 1


def test_a_missing_row_is_found_beside_rows_that_retention_removed(tmp_path: Path) -> None:
    found = table(tmp_path, [row for row in ROWS if row["lsn"] != 4], is_counted=True)
    _remove(found, date(2026, 1, 1), 3)
    assert retained_rows(DeltaTable(found.table_uri)).missing == 1


def test_a_row_lost_and_another_doubled_is_seen(tmp_path: Path) -> None:
    found = table(tmp_path, [*(row for row in ROWS if row["lsn"] != 5), ROWS[7]], is_counted=True)
    assert (retained_rows(found).missing, has_each_once(found, retained_rows(found))) == (0, False)


OF_TWO_CAUSES = [row(1, 1, RULES), row(2, 1), row(3, 1, RULES) | {"cause": "decided"}, row(4, 2)]


def read_by_cause(found: DeltaTable) -> int:
    """As replay and the audit look for people's decisions."""
    return int(DeltaTable(found.table_uri).to_pyarrow_dataset().count_rows(filter=pc.field("cause") == "decided"))


def test_rows_that_retention_leaves_are_found_by_their_texts(tmp_path: Path) -> None:
    found = table(tmp_path, OF_TWO_CAUSES, is_counted=True)
    before = DeltaTable(found.table_uri).to_pyarrow_table().sort_by("lsn")
    assert _remove(found, date(2026, 1, 1), 3) == 1
    assert read_by_cause(found) == 1
    left = DeltaTable(found.table_uri).to_pyarrow_table().sort_by("lsn")
    assert left.equals(before.filter(pc.field("lsn") != 2))
    assert DeltaTable(found.table_uri).transaction_version(REMOVED) == 1


def test_rows_that_an_earlier_release_left_unreadable_are_written_again_once(tmp_path: Path) -> None:
    found = table(tmp_path, OF_TWO_CAUSES, is_counted=True)
    found.delete("log_date = DATE '2026-01-01' AND rules IS NULL")
    with pytest.raises(pa.ArrowNotImplementedError, match="string_view"):
        read_by_cause(found)
    assert _remove(found, date(2026, 1, 1), 2) == 0
    assert read_by_cause(found) == 1
    version = found.version()
    assert _remove(found, date(2026, 1, 1), 2) == 0
    assert (found.version(), found.transaction_version(REMOVED)) == (version, 0)
