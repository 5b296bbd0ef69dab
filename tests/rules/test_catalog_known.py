"""Method: joins has what its tables would take for a repeat, so the rule for these (`without_repeats`) is asked too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalog.change import Change, envelope
from catalog.joined_versions import not_joined
from jobs.joins.catalog import without_repeats
from jobs.journal.catalog_changes import parse_change
from jobs.streams import ACCOUNTS, CatalogTopic, Table

NOW = datetime(2027, 3, 1, tzinfo=UTC)
JANUARY, JUNE = (datetime(2027, month, 1, tzinfo=UTC) for month in (1, 6))
BOUGHT = {"account": "acme", "name": "Acme", "plan": "B", "currency": "EUR", "timezone": "UTC"}


def versions(*said: Mapping[str, Any]) -> pa.Table:
    rows = [{"lsn": lsn, **BOUGHT, "deleted": False, **row} for lsn, row in enumerate(said, start=1)]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def row(effective_from: str | None, changed_at: str = "2027-02-01T00:00:00Z", **values: str) -> Change:
    """The account's row in the database, found as it was."""
    after = {**BOUGHT, **values, "effective_from": effective_from, "changed_at": changed_at}
    return Change(CatalogTopic.ACCOUNTS, {"account": "acme"}, after, "r", NOW)


def is_known(tables: Path, held: pa.Table, change: Change) -> bool:
    write_deltalake(f"{tables}/{Table.ACCOUNTS}", held)
    return not_joined(str(tables), [change]) == []


@pytest.mark.parametrize(
    ("catalog_says", "known"),
    [
        (row("2027-06-01T00:00:00Z"), True),
        (row("2027-06-01T02:00:00+02:00"), True),
        (row("2027-01-01T00:00:00Z"), False),
        (row("2027-06-01T00:00:00.000001Z"), False),
        (row("2027-06-01T00:00:00Z", timezone="Asia/Tokyo"), False),
        (row(None, changed_at="2027-06-01T00:00:00Z"), True),
        (row(None, changed_at="2027-06-01T00:00:00.001Z"), False),
    ],
)
def test_differential_an_explicit_start_is_recognized_as_a_repeat(
    tmp_path: Path, catalog_says: Change, known: bool
) -> None:
    held = versions({"plan": "A", "effective_from": JANUARY}, {"effective_from": JUNE})
    said = parse_change(catalog_says.topic, json.dumps(envelope(catalog_says)).encode(), 3)
    assert said is not None
    news = without_repeats(Table.ACCOUNTS, held, pa.Table.from_pylist([said], schema=ACCOUNTS))
    assert (news.num_rows == 0) is known
    assert is_known(tmp_path, held, catalog_says) is known


@pytest.mark.parametrize("since", [None, "2027-06-01T00:00:00Z"])
def test_property_a_row_published_again_makes_no_version_however_late_its_snapshot(since: str | None) -> None:
    """A snapshot is of a later moment than the change that it tells again."""
    first, again = (
        parse_change(change.topic, json.dumps(envelope(change)).encode(), lsn)
        for lsn, change in enumerate((row(since), replace(row(since), committed_at=NOW + timedelta(days=9))), start=1)
    )
    held = pa.Table.from_pylist([first], schema=ACCOUNTS)
    assert without_repeats(Table.ACCOUNTS, held, pa.Table.from_pylist([again], schema=ACCOUNTS)).num_rows == 0


def test_an_account_that_joins_has_as_deleted_or_not_at_all_is_not_known(tmp_path: Path) -> None:
    deleted = versions({"effective_from": JANUARY}, {"effective_from": JANUARY, "deleted": True})
    assert not_joined(f"{tmp_path}/none", [row(None)]) == [row(None)]
    assert not is_known(tmp_path, deleted, row("2027-01-01T00:00:00Z"))
