"""A change that was published twice is one version: any repetition of a topic's changes leaves the same versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.catalog import without_repeats
from jobs.streams import ACCOUNTS, Table

START = datetime(2026, 1, 1, tzinfo=UTC)
Said = tuple[str, str | None, int]
"""Account, plan (None: deleted), and the hour from which it holds."""

changes = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "p", "q"]), st.integers(0, 2)), max_size=8)


def table(said: list[Said], first_lsn: int) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"lsn": lsn, "account": account, "plan": plan, "deleted": plan is None}
        | {"effective_from": START + timedelta(hours=hour)}
        for lsn, (account, plan, hour) in enumerate(said, start=first_lsn)
    ]
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def said_by(versions: pa.Table) -> list[Said]:
    return [
        (row["account"], row["plan"], (row["effective_from"] - START) // timedelta(hours=1))
        for row in versions.to_pylist()
    ]


def taken(batches: list[list[Said]]) -> list[Said]:
    versions, lsn = ACCOUNTS.empty_table(), 1
    for batch in batches:
        versions = pa.concat_tables([versions, without_repeats(Table.ACCOUNTS, versions, table(batch, lsn))])
        lsn += len(batch)
    return said_by(versions)


@settings(deadline=None)
@given(batches=st.lists(changes, max_size=4))
def test_oracle_what_an_account_said_last_is_no_new_version_of_it(batches: list[list[Said]]) -> None:
    expected: list[Said] = []
    newest: dict[str, Said] = {}
    for change in (change for batch in batches for change in batch):
        if newest.get(change[0]) != change:
            expected.append(change)
        newest[change[0]] = change
    assert taken(batches) == expected


def test_what_is_published_again_after_a_crash_is_no_version() -> None:
    said: list[Said] = [("a", "p", 0), ("b", "p", 0)]
    assert taken([said, said]) == said
    assert taken([[*said, *said]]) == said


def test_what_was_so_before_and_is_so_again_is_a_version() -> None:
    assert len(taken([[("a", "p", 0), ("a", "q", 1), ("a", "p", 2)]])) == 3
