"""Dead letters and the conservation equation, from real Delta tables in a temporary folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cli.conflicts import COLUMNS as CONFLICT_COLUMNS
from cli.conflicts import ConflictQuery, conflict_rows, differences
from cli.conflicts import shortened as shortened_conflict
from cli.dead_letter_rows import COLUMNS, DeadLetterQuery, dead_letter_rows, shortened
from cli.journal import summary_rows
from cli.journal_table import count_redriven, open_journal
from jobs.audit.compare.conservation import conserved, consumed_ranges, count_rows
from jobs.audit.compare.partition_balance import PartitionRange, RowKey
from jobs.runtime.delta.growth import missing_columns
from jobs.runtime.kafka.topic import Topic
from jobs.streams import JOURNAL, Table
from metering.vocabulary import Disposition

T0 = datetime(2026, 3, 1, 23, 59, 58, tzinfo=UTC)
EVENTS = Topic("events", "AAAAAAAAAAEAAAAAAAAAAg", (0, 1))


def record(
    lsn: int, disposition: str, reason: str | None = None, value: bytes | None = b"{}", **more: Any
) -> Mapping[str, Any]:
    at = T0 + timedelta(seconds=lsn)
    row = {"lsn": lsn, "log_date": at.date(), "topic": "events", "partition": 0, "offset": lsn, "received_at": at}
    return {**row, "logged_at": at, "disposition": disposition, "reason": reason, "value": value, **more}


def commit(tables: Path, *rows: Mapping[str, Any], **positions: int) -> None:
    write_deltalake(
        str(tables / Table.JOURNAL),
        pa.Table.from_pylist(list(rows), JOURNAL),
        mode="append",
        partition_by=["log_date"],
        commit_properties=CommitProperties(app_transactions=[Transaction(app, at) for app, at in positions.items()]),
    )


def journal(tables: Path) -> DeltaTable:
    opened = open_journal(str(tables))
    assert opened is not None
    return opened


def dead_letters(tables: Path, query: DeadLetterQuery | None = None) -> list[Any]:
    return list(dead_letter_rows(journal(tables), query or DeadLetterQuery()))


def test_there_is_no_journal_before_ingestion_made_it(tmp_path: Path) -> None:
    assert open_journal(str(tmp_path)) is None


def test_dead_letters_come_in_the_order_of_record_across_days_and_files(tmp_path: Path) -> None:
    commit(tmp_path, record(5, "rejected", "future"), record(6, "accepted"))
    commit(tmp_path, record(4, "duplicate"), record(3, "rejected", "malformed"))
    commit(tmp_path, record(2, "rejected", "malformed"), record(1, "rejected", "too_old", source="s", id="e1"))
    rows = dead_letters(tmp_path)
    assert [row["offset"] for row in rows] == [1, 2, 3, 5]
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["source"], rows[0]["id"], rows[0]["reason"]) == ("s", "e1", "too_old")
    assert rows[0]["received_at"] == T0 + timedelta(seconds=1)
    assert {row["reason"] for row in dead_letters(tmp_path, DeadLetterQuery(reasons=("future", "none")))} == {"future"}
    some = DeadLetterQuery(T0 + timedelta(seconds=2), T0 + timedelta(seconds=5))
    assert [row["offset"] for row in dead_letters(tmp_path, some)] == [2, 3]


def test_dead_letters_keep_their_order_when_files_were_compacted(tmp_path: Path) -> None:
    for lsn in (4, 1, 3, 2):
        commit(tmp_path, record(lsn, "rejected", "malformed", log_date=T0.date()))
    journal(tmp_path).optimize.compact()
    assert [row["offset"] for row in dead_letters(tmp_path)] == [1, 2, 3, 4]


def test_dead_letters_say_which_rule_they_break(tmp_path: Path) -> None:
    broken = "ai.inference.request.v1 /data/model: required"
    commit(tmp_path, record(1, "rejected", "invalid_model", violation=broken))
    assert [row["violation"] for row in dead_letters(tmp_path)] == [broken]


def test_dead_letters_of_a_version_that_named_no_rule_are_listed_before_and_after_the_journal_has_grown(
    tmp_path: Path,
) -> None:
    older = pa.schema([field for field in JOURNAL if field.name != "violation"])
    rows = [{name: row.get(name) for name in older.names} for row in [record(1, "rejected", "future", source="s")]]
    write_deltalake(str(tmp_path / Table.JOURNAL), pa.Table.from_pylist(rows, older), partition_by=["log_date"])
    (row,) = dead_letters(tmp_path)
    assert tuple(row) == COLUMNS
    assert (row["source"], row["reason"], row["violation"], row["value"]) == ("s", "future", None, "{}")
    table = journal(tmp_path)
    table.alter.add_columns(missing_columns(table, JOURNAL))
    commit(tmp_path, record(2, "rejected", "malformed", violation="JSON (RFC 8259): Expecting value, at character 0"))
    assert [row["violation"] for row in dead_letters(tmp_path)] == [
        None,
        "JSON (RFC 8259): Expecting value, at character 0",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"id": "\xc3\xa9\\n"}', '{"id": "é\\n"}'),
        (b"\xff\xfe{", "\\xff\\xfe{"),
        (b"a\x00b", "a\x00b"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
        (b"", ""),
        (None, None),
    ],
)
def test_a_value_is_text_whatever_its_bytes(tmp_path: Path, value: bytes | None, text: str | None) -> None:
    commit(tmp_path, record(1, "rejected", "malformed", value))
    assert [row["value"] for row in dead_letters(tmp_path)] == [text]


def test_a_shortened_value_shows_how_much_is_missing() -> None:
    assert shortened({"value": "x" * 1000})["value"] == "x" * 200 + "… (800 more characters)"
    assert shortened({"value": "x" * 200})["value"] == "x" * 200
    assert shortened({"value": None})["value"] is None


def test_the_equation_adds_up_per_partition(tmp_path: Path) -> None:
    first, second = ({EVENTS.first(0): 1, EVENTS.position(0): 5}, {EVENTS.position(0): 8, EVENTS.absent(0): 1})
    commit(
        tmp_path,
        record(1, "accepted"),
        record(2, "accepted", replays_lsn=1),
        record(3, "rejected", "future"),
        record(4, "duplicate"),
        **first,
    )
    commit(tmp_path, record(5, "conflict"), record(6, "rejected", "malformed"), **second)
    table = journal(tmp_path)
    consumed = consumed_ranges(table, [EVENTS, Topic("catalog.plans", "x", (0,))])
    rows = count_rows(table)

    (line,) = summary_rows(consumed, rows, by_reason=False, redriven=count_redriven(table))
    assert line == {
        "topic": "events",
        "partition": 0,
        "reason": None,
        "first_offset": 1,
        "next_offset": 8,
        "absent": 1,
        "accepted": 2,
        "rejected": 2,
        "duplicate": 1,
        "conflict": 1,
        "accepted_events": 2,
        "redriven": 1,
        "removed": 0,
        "lost": 0,
        "residual": 0,
    }
    split = list(summary_rows(consumed, rows, by_reason=True))
    assert [(row["reason"], row["accepted"], row["rejected"], row["residual"]) for row in split] == [
        (None, 2, 0, 0),
        ("future", 0, 1, 0),
        ("malformed", 0, 1, 0),
    ]
    for disposition in Disposition:
        assert sum(int(str(row[disposition])) for row in split) == line[disposition]


def test_missing_and_surplus_records_leave_a_residual() -> None:
    rows: dict[RowKey, int] = {("events", 0, "accepted", None): 3}
    assert [
        row["residual"] for row in summary_rows({("events", 0): PartitionRange(0, 4, 0)}, rows, by_reason=False)
    ] == [1]
    assert [
        row["residual"] for row in summary_rows({("events", 0): PartitionRange(0, 4, 2)}, rows, by_reason=False)
    ] == [-1]
    # What retention has removed was there: it is neither.
    assert [
        row["residual"] for row in summary_rows({("events", 0): PartitionRange(0, 9, 2, 4)}, rows, by_reason=False)
    ] == [0]


def test_empty_and_deleted_partitions_are_both_shown() -> None:
    rows: dict[RowKey, int] = {("gone", 3, "accepted", None): 2}
    empty, gone = summary_rows({("events", 1): PartitionRange(0, 2, 2)}, rows, by_reason=False)
    assert (empty["partition"], empty["absent"], empty["accepted"], empty["residual"]) == (1, 2, 0, 0)
    assert (gone["topic"], gone["first_offset"], gone["accepted"], gone["residual"]) == ("gone", None, 2, None)


def test_the_audit_adds_up_each_partition_and_reports_what_it_could_not_read() -> None:
    covered = {("events", 0): PartitionRange(0, 9, 2, 4), ("events", 1): PartitionRange(5, 8, 0)}
    rows = {("events", 0): 3, ("events", 1): 3}
    sound = conserved(covered, rows)
    assert (sound.examined, sound.found, sound.holds) == (6, 0, True)
    lacking = conserved(covered, {**rows, ("events", 1): 1})
    assert (lacking.found, lacking.says) == (1, "partition 1 of events lacks 2 rows")
    assert conserved(covered, {("events", 0): 3}).says == "partition 1 of events lacks 3 rows"
    gone = conserved(covered, {**rows, ("old", 0): 7})
    assert (gone.examined, gone.found) == (6, 0)
    assert gone.says.startswith("topic old no longer exists")


def event(tokens: int, **more: Any) -> bytes:
    return json.dumps({"id": "e1", "data": {"input_tokens": tokens}, **more}).encode()


def test_a_conflict_is_listed_beside_the_event_that_was_accepted(tmp_path: Path) -> None:
    commit(tmp_path, record(1, "accepted", value=event(100)), record(2, "accepted"), record(3, "duplicate"))
    commit(tmp_path, record(4, "conflict", value=event(900), first_lsn=1, account="acme", source="s", id="e1"))
    commit(tmp_path, record(5, "rejected", "malformed"), record(6, "conflict", value=event(7), first_lsn=1))
    rows: list[Any] = list(conflict_rows(journal(tmp_path), ConflictQuery()))
    assert tuple(rows[0]) == CONFLICT_COLUMNS
    assert [(row["lsn"], row["first_lsn"]) for row in rows] == [(4, 1), (6, 1)]
    first = rows[0]
    assert (first["first_value"], first["value"]) == (event(100).decode(), event(900).decode())
    assert (first["differs"], first["account"]) == ("/data/input_tokens", "acme")
    assert (first["first_received_at"], first["received_at"]) == (T0 + timedelta(seconds=1), T0 + timedelta(seconds=4))
    of_acme = conflict_rows(journal(tmp_path), ConflictQuery(accounts=("acme",)))
    assert [row["lsn"] for row in of_acme] == [4]
    later = conflict_rows(journal(tmp_path), ConflictQuery(start=T0 + timedelta(seconds=5)))
    assert [row["lsn"] for row in later] == [6]


def test_a_conflict_whose_first_event_was_removed_is_listed_without_it(tmp_path: Path) -> None:
    commit(tmp_path, record(4, "conflict", value=event(900), first_lsn=1))
    (row,) = conflict_rows(journal(tmp_path), ConflictQuery())
    assert (row["first_lsn"], row["first_value"], row["first_received_at"], row["differs"]) == (1, None, None, None)


@pytest.mark.parametrize(
    ("first", "second", "pointers"),
    [
        (event(1), event(1, subject="a"), "/subject"),
        (event(1, time=None), event(2, time="t"), "/data/input_tokens, /time"),
        (event(1, cached=True), event(1, cached=1), "/cached"),
        (event(1, **{"a/b": 1}), event(1, **{"a/b": [1]}), "/a~1b"),
        (event(1), b"{", None),
        # Of more digits than a float has, or Python takes for an integer.
        (b'{"a":99999999999.123456}', b'{"a":99999999999.123457}', "/a"),
        (b'{"a":1e999}', b'{"a":1e998}', "/a"),
        (b'{"a":1e99999999999999999999}', b'{"a":1}', "/a"),
        (b'{"a":' + b"1" * 5_000 + b',"b":1}', b'{"a":' + b"1" * 5_000 + b',"b":2}', "/b"),
    ],
)
def test_differences_of_two_events_are_named_by_path(first: bytes, second: bytes, pointers: str | None) -> None:
    assert differences(first, second) == pointers


def test_shortened_contents_show_how_much_is_missing() -> None:
    row = shortened_conflict({"first_value": "x" * 300, "value": None})
    assert row == {"first_value": "x" * 200 + "… (100 more characters)", "value": None}
