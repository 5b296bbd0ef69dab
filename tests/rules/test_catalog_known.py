"""Method: joins has what its tables would take for a repeat, so the rule for these (`without_repeats`) is asked too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalog.change import Change, envelope
from catalog.publishing import Known
from jobs.joins.catalog import without_repeats
from jobs.runtime.catalog_changes import parse_change
from jobs.streams import ACCOUNTS, CatalogTopic, Table

NOW = datetime(2027, 3, 1, tzinfo=UTC)
JANUARY, JUNE = (datetime(2027, month, 1, tzinfo=UTC) for month in (1, 6))
BOUGHT = {"account": "acme", "name": "Acme", "plan": "B", "currency": "EUR", "timezone": "UTC"}


def versions(*said: Mapping[str, Any]) -> pa.Table:
    rows = [{"lsn": lsn, **BOUGHT, "deleted": False, **row} for lsn, row in enumerate(said, start=1)]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def row(effective_from: str | None, **values: str) -> Change:
    """The account's row in the database, found as it was."""
    after = {**BOUGHT, **values, "effective_from": effective_from}
    return Change(CatalogTopic.ACCOUNTS, {"account": "acme"}, after, "r", NOW)


def is_known(tables: Path, held: pa.Table, change: Change) -> bool:
    write_deltalake(f"{tables}/{Table.ACCOUNTS}", held)
    return Known(str(tables))(change)


@pytest.mark.parametrize(
    ("catalog_says", "known"),
    [
        (row("2027-06-01T00:00:00Z"), True),
        (row("2027-06-01T02:00:00+02:00"), True),
        (row("2027-01-01T00:00:00Z"), False),
        (row("2027-06-01T00:00:00.000001Z"), False),
        (row("2027-06-01T00:00:00Z", timezone="Asia/Tokyo"), False),
    ],
)
def test_differential_what_says_from_when_on_is_known_where_it_would_be_a_repeat(
    tmp_path: Path, catalog_says: Change, known: bool
) -> None:
    held = versions({"plan": "A", "effective_from": JANUARY}, {"effective_from": JUNE})
    said = parse_change(catalog_says.topic, json.dumps(envelope(catalog_says)).encode(), 3)
    assert said is not None
    news = without_repeats(Table.ACCOUNTS, held, pa.Table.from_pylist([said], schema=ACCOUNTS))
    assert (news.num_rows == 0) is known
    assert is_known(tmp_path, held, catalog_says) is known


@pytest.mark.parametrize(("held_from", "known"), [(JANUARY, True), (NOW, True), (JUNE, False)])
def test_what_holds_from_now_on_is_known_where_it_has_begun(tmp_path: Path, held_from: datetime, known: bool) -> None:
    """From when on it was told the database's row does not say."""
    assert is_known(tmp_path, versions({"effective_from": held_from}), row(None)) is known


def test_an_account_that_joins_has_as_deleted_or_not_at_all_is_not_known(tmp_path: Path) -> None:
    deleted = versions({"effective_from": JANUARY}, {"effective_from": JANUARY, "deleted": True})
    assert not Known(f"{tmp_path}/none")(row(None))
    assert not is_known(tmp_path, deleted, row("2027-01-01T00:00:00Z"))
