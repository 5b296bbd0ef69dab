"""What people decided is in usage as the journal tells it: billing goes by those rows alone, so each fault moves money.

Method: the rows that joins makes of a journal with decisions, as tables; then one fault is planted in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from catalog.change import envelope
from catalog.decisions import DecisionText, Waiting, change_of
from jobs.audit.bills.journal_decisions import wrong_decisions
from jobs.audit.tables.retained import RetainedRows, retained_rows
from jobs.joins.decisions import decisions, with_decisions
from jobs.joins.usage_rows import usage_rows
from jobs.runtime.delta.table import LSN, REMOVED, committing
from jobs.streams import JOURNAL, USAGE, CatalogTopic, Table
from metering.vocabulary import Decision, Disposition
from tests.pipelines.billing import NOON

MANY = 4
DAY = timedelta(days=1)
F = NOON + timedelta(seconds=90)
"""When two of them were received already, and two were not."""
Row = dict[str, Any]


def tables_of(folder: Path, plant: Callable[[list[Row]], list[Row]] = list) -> tuple[DeltaTable, DeltaTable]:
    """A journal with decisions, one a minute, and the usage that joins made of them with F, but for a fault."""
    told = []
    for number in range(MANY):
        said = DecisionText(Decision.APPROVE if number % 2 else Decision.REJECT, f"because {number}", "ann")
        change = change_of(Waiting(100 + number, "requests", "acme", f"r{number}"), said, NOON)
        row = {"topic": CatalogTopic.DECISIONS.value, "partition": 0, "offset": number, "lsn": 10 + number}
        at = NOON + timedelta(minutes=number)
        row |= {"value": json.dumps(envelope(change)).encode(), "disposition": Disposition.ACCEPTED.value}
        told.append(row | {"received_at": at, "logged_at": at, "log_date": (NOON + number * DAY).date()})
    journal = pa.Table.from_pylist([{f.name: row.get(f.name) for f in JOURNAL} for row in told], schema=JOURNAL)
    made = with_decisions(USAGE.empty_table(), decisions(pl.DataFrame(journal), F))
    rows = plant(usage_rows(made, 1, NOON, None, F).to_pylist())
    usage = pa.Table.from_pylist(rows, schema=USAGE)
    for table, held, following in ((Table.JOURNAL, journal, 10 + MANY), (Table.USAGE, usage, 1 + MANY)):
        said_by = committing({LSN: following, REMOVED: 0})
        write_deltalake(str(folder / table), held, partition_by=["log_date"], commit_properties=said_by)
    return DeltaTable(str(folder / Table.JOURNAL)), DeltaTable(str(folder / Table.USAGE))


def said_of(
    journal: DeltaTable, usage: DeltaTable, position: int = 10 + MANY, usage_kept: RetainedRows | None = None
) -> list[str]:
    held = {Table.JOURNAL: retained_rows(journal), Table.USAGE: usage_kept or retained_rows(usage)}
    return list(wrong_decisions(journal, usage, held, position))


def test_the_usage_of_joins_equals_the_decisions_in_the_journal(tmp_path: Path) -> None:
    assert said_of(*tables_of(tmp_path)) == []


def test_rows_that_joins_has_not_read_are_no_fault(tmp_path: Path) -> None:
    assert said_of(*tables_of(tmp_path, lambda rows: rows[:2]), position=12) == []


def turned(row: Row) -> Row:
    return row | {"dimensions": row["dimensions"].replace("reject", "approve")}


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (lambda rows: rows[1:], ["lacks, or differs from"]),
        (lambda rows: [*rows, rows[0]], ["more than once"]),
        (lambda rows: [turned(rows[0]), *rows[1:]], ["lacks, or differs from", "a decision that the journal lacks"]),
        (
            lambda rows: [rows[0] | {"corrects_lsns": [7]}, *rows[1:]],
            ["lacks, or differs from", "a decision that the journal lacks"],
        ),
        (
            lambda rows: [rows[0] | {"account": "bolt"}, *rows[1:]],
            ["lacks, or differs from", "a decision that the journal lacks"],
        ),
        (lambda rows: [*rows, rows[0] | {"request_lsn": 12}], ["a decision that the journal lacks", "more than once"]),
        (lambda rows: [rows[0] | {"received_at": NOON - DAY}, *rows[1:]], ["another time"]),
        (lambda rows: [*rows[:3], rows[3] | {"received_at": NOON + DAY}], ["another time"]),
    ],
    ids=["lost", "doubled", "turned", "other straggler", "other account", "made up", "earlier", "later"],
)
def test_a_decision_that_differs_from_usage_is_found(
    tmp_path: Path, plant: Callable[[list[Row]], list[Row]], says: list[str]
) -> None:
    found = said_of(*tables_of(tmp_path, plant))
    assert len(found) == len(says)
    assert all(part in sentence for part, sentence in zip(says, found, strict=True)), found


def test_decisions_on_removed_days_of_usage_are_not_checked(tmp_path: Path) -> None:
    journal, usage = tables_of(tmp_path, lambda rows: rows[2:])
    lost = RetainedRows(3, 1 + MANY, MANY - 2, (NOON + DAY).date())
    assert said_of(journal, usage) != []
    assert said_of(journal, usage, usage_kept=lost) == []
