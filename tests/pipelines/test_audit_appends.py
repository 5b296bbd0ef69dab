"""What later information has changed is corrected by signed rows of usage: once, whole, by Spark as by one process.

Method: a history of the simulator that nobody has audited; the audit runs on its tables as `weir audit` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.audit.check import Check
from jobs.audit.recompute.basis import Scope
from jobs.audit.run import Audit, NotBilledError
from jobs.audit.tables.append import AuditedMeanwhile, append
from jobs.joins.usage_rows import usage_rows
from jobs.runtime.delta.table import LSN, DeltaWriter, open_table
from jobs.runtime.effective_rules import TRANSACTION
from jobs.runtime.errors import Fenced
from jobs.streams import USAGE, Table
from metering.vocabulary import UsageCause
from tests.clocks import HandClock
from tests.simulation.audits import audit
from tests.simulation.left import left_by

SEED = 31
"""A history in which prices come late, requests are rejoined, and events are accepted twice."""
NOW = datetime(2026, 2, 1, tzinfo=UTC)
Row = dict[str, Any]


@dataclass(frozen=True)
class Unaudited:
    """Where a history has left its tables and its rows."""

    tables: Path
    database: str


@pytest.fixture(scope="module")
def unaudited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unaudited]:
    with left_by(SEED, tmp_path_factory.mktemp("unaudited"), is_audited=False) as world:
        yield Unaudited(world.tables, world.database)


@pytest.fixture
def tables(unaudited: Unaudited, tmp_path: Path) -> str:
    """A copy of them."""
    return str(copytree(unaudited.tables, tmp_path / "tables"))


def rows_of(tables: str) -> list[Row]:
    rows = DeltaTable(f"{tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["lsn"])


def added(tables: str) -> list[Row]:
    return [row for row in rows_of(tables) if row["cause"] != UsageCause.STREAM]


def run(spark: SparkSession, tables: str, database: str, **asked: Any) -> dict[str, Check]:
    return {one.check: one for one in Audit(spark, tables, database, HandClock(NOW), **asked).run()}


@pytest.mark.long
def test_a_dry_run_reports_and_changes_nothing(spark: SparkSession, unaudited: Unaudited, tables: str) -> None:
    before = rows_of(tables)
    found = run(spark, tables, unaudited.database, appends=False)
    assert rows_of(tables) == before
    assert found["I8"].found == found["I8"].expected > 0
    assert found["I8"].corrected == 0
    assert all(one.holds for one in found.values())


def test_executors_correct_what_one_process_does(
    spark: SparkSession, unaudited: Unaudited, tables: str, tmp_path: Path
) -> None:
    alone = str(copytree(tables, tmp_path / "alone"))
    said = audit(alone, NOW)
    assert said is not None
    assert said.faults == []
    with pytest.raises(NotBilledError, match="audit again"):
        run(spark, tables, unaudited.database, wait_seconds=0)
    told = [[{**row, "lsn": None} for row in added(each)] for each in (tables, alone)]
    assert sorted(map(str, told[0])) == sorted(map(str, told[1]))
    assert {row["cause"] for row in told[0]} == {"repriced", "rejoined", "duplicate"}


def test_a_second_audit_adds_nothing(tables: str) -> None:
    first = audit(tables, NOW)
    assert first is not None
    assert first.appended == len(added(tables)) > 0
    second = audit(tables, NOW)
    assert second is not None
    assert (second.appended, second.faults) == (0, [])


@pytest.mark.long
def test_corrections_in_parts_end_as_corrections_at_once(tables: str, tmp_path: Path) -> None:
    """Killed anywhere, it goes on where it was: what stands is compared with what must stand."""
    whole = str(copytree(tables, tmp_path / "whole"))
    audit(whole, NOW)
    many = 0
    while (said := audit(tables, NOW, max_rows=1)) is not None and said.appended:
        assert said.faults == []
        many += 1
    assert many > 1
    told = [[{**row, "lsn": None} for row in added(each)] for each in (tables, whole)]
    assert sorted(map(str, told[0])) == sorted(map(str, told[1]))


def test_rows_of_the_audit_continue_the_numbering_and_name_their_cause(tables: str) -> None:
    before = rows_of(tables)
    audit(tables, NOW)
    rows = rows_of(tables)
    assert rows[: len(before)] == before
    assert [row["lsn"] for row in rows] == list(range(1, len(rows) + 1))
    by_lsn = {row["lsn"]: row for row in rows}
    for row in added(tables):
        assert row["logged_at"] == NOW
        named = [by_lsn[lsn] for lsn in row["corrects_lsns"]]
        if row["sign"] < 0:
            copied = [name for name in USAGE.names if name not in CHANGED]
            assert len(named) == 1
            assert [row[name] for name in copied] == [named[0][name] for name in copied]
        else:
            assert row["day"] in [one["day"] for one in named]
            assert {one["request_id"] for one in named} == {row["request_id"]}


CHANGED = ("lsn", "log_date", "logged_at", "rules", "frontier", "sign", "cause", "corrects_lsns")


def test_a_pair_that_is_rejoined_takes_back_its_two_parts(tables: str) -> None:
    audit(tables, NOW)
    pairs = [row for row in added(tables) if row["cause"] == "rejoined" and row["sign"] > 0]
    assert pairs
    by_lsn = {row["lsn"]: row for row in rows_of(tables)}
    for pair in pairs:
        parts = [by_lsn[lsn] for lsn in pair["corrects_lsns"]]
        assert sorted(part["outcome"] for part in parts) == ["abandoned", "orphaned"]
        assert {part["request_lsn"] or part["completion_lsn"] for part in parts} == {
            pair["request_lsn"],
            pair["completion_lsn"],
        }


def test_two_audits_of_one_version_correct_once(tables: str) -> None:
    usage = open_table(tables, Table.USAGE)
    assert usage is not None
    slow = open_table(tables, Table.USAGE)
    assert slow is not None
    audit(tables, NOW)
    with pytest.raises(AuditedMeanwhile):
        append(slow, one_row(usage), NOW)
    assert len(added(tables)) == len({(row["sign"], *row["corrects_lsns"]) for row in added(tables)})


def one_row(usage: DeltaTable) -> pa.Table:
    return usage.to_pyarrow_table().slice(0, 1).drop_columns(["lsn", "log_date", "logged_at", "rules"])


def test_joins_and_the_audit_append_after_each_other(tables: str) -> None:
    usage = open_table(tables, Table.USAGE)
    assert usage is not None
    last = rows_of(tables)[-1]["lsn"]
    epoch = usage.transaction_version("joins.epoch") or 0
    joins = DeltaWriter(tables, Table.USAGE, "joins", epoch + 1)
    outcome = one_row(usage)
    append(usage, outcome, NOW)
    joins.append(lambda first: (usage_rows(outcome, first, NOW, None), {LSN: first + 1}))
    append(open_table(tables, Table.USAGE) or usage, outcome, NOW)
    joins.append(lambda first: (usage_rows(outcome, first, NOW, None), {LSN: first + 1}))
    assert [row["lsn"] for row in rows_of(tables)[last:]] == [last + 1, last + 2, last + 3, last + 4]


@pytest.mark.parametrize("many", [0, 1], ids=["without rows", "with a row"])
def test_an_audit_appends_after_a_commit_of_joins_that_was_faster(
    tables: str, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """joins also commits where it only moves its frontier; the audit then has lost against it, and tries again."""
    usage = open_table(tables, Table.USAGE)
    assert usage is not None
    last, outcome = rows_of(tables)[-1]["lsn"], one_row(usage)
    joins = DeltaWriter(tables, Table.USAGE, "joins", (usage.transaction_version("joins.epoch") or 0) + 1)
    faster = [outcome.slice(0, many)]

    def write(*of: Any, **how: Any) -> None:
        if faster:
            rows = faster.pop()
            joins.append(lambda first: (usage_rows(rows, first, NOW, None), {LSN: first + len(rows)}))
        write_deltalake(*of, **how)

    monkeypatch.setattr("jobs.audit.tables.append.write_deltalake", write)
    assert append(usage, outcome, NOW) == last + many + 2
    assert [row["lsn"] for row in rows_of(tables)[last:]] == list(range(last + 1, last + many + 2))


def test_an_audit_does_not_append_after_meters_changed(tables: str) -> None:
    """What a contract gives counts by the meters where its row stands: they came between the look and the commit."""
    usage = open_table(tables, Table.USAGE)
    assert usage is not None
    outcome, epoch = one_row(usage), usage.transaction_version("joins.epoch") or 0
    joins = DeltaWriter(tables, Table.USAGE, "joins", epoch + 1)
    joins.append(lambda first: (usage_rows(outcome, first, NOW, None), {LSN: first + 1, TRANSACTION: first}))
    before = rows_of(tables)
    with pytest.raises(AuditedMeanwhile, match="other rules"):
        append(usage, outcome, NOW)
    assert rows_of(tables) == before


def test_a_replaced_joins_is_fenced_after_an_audit_has_appended(tables: str) -> None:
    usage = open_table(tables, Table.USAGE)
    assert usage is not None
    epoch = usage.transaction_version("joins.epoch") or 0
    zombie = DeltaWriter(tables, Table.USAGE, "joins", epoch + 1)
    DeltaWriter(tables, Table.USAGE, "joins", epoch + 2)
    append(open_table(tables, Table.USAGE) or usage, one_row(usage), NOW)
    with pytest.raises(Fenced):
        zombie.append(lambda first: (usage_rows(one_row(usage), first, NOW, None), {LSN: first + 1}))


@pytest.mark.long
def test_an_audit_of_a_period_corrects_that_period_only(spark: SparkSession, unaudited: Unaudited, tables: str) -> None:
    received = sorted(row["received_at"] for row in rows_of(tables))
    middle = received[len(received) // 2].replace(second=0, microsecond=0)
    everything = run(spark, tables, unaudited.database, appends=False)
    parts = [
        run(spark, tables, unaudited.database, appends=False, scope=scope)
        for scope in (Scope(since=middle), Scope(until=middle))
    ]
    assert all(one.holds for found in parts for one in found.values())
    assert everything["I8"].found >= max(found["I8"].found for found in parts) > 0
    assert 0 < parts[0]["I10"].examined < everything["I10"].examined


def changed(row: Row, **more: Any) -> Row:
    """The same with more in the first entry that has a quantity, and with the amount that this makes."""
    chosen = next(entry for entry in row["meters"] if entry["quantity"])
    other = {**chosen, **{name: chosen[name] + value for name, value in more.items()}}
    if chosen["amount"] is not None and "amount" not in more:
        other["amount"] = other["quantity"] * other["unit_price"]
    return {**row, "meters": [other if entry is chosen else entry for entry in row["meters"]]}


def is_priced(row: Row) -> bool:
    first = next((entry for entry in row["meters"] if entry["quantity"]), None)
    return row["sign"] > 0 and first is not None and first["amount"] is not None


def names_two(row: Row) -> bool:
    return row["sign"] > 0 and len(row["corrects_lsns"] or ()) > 1


PLANTED: dict[str, tuple[Callable[[Row], bool], Callable[[Row], list[Row]]]] = {
    "a reversal skipped": (lambda row: row["sign"] < 0, lambda _: []),
    "a replacement lost": (lambda row: row["sign"] > 0, lambda _: []),
    "a sign turned": (lambda row: row["sign"] < 0, lambda row: [{**row, "sign": 1}]),
    "a reversal doubled": (lambda row: row["sign"] < 0, lambda row: [row, {**row, "lsn": 90_000}]),
    "another model": (lambda row: row["sign"] > 0, lambda row: [{**row, "model": "other"}]),
    "another day": (lambda row: row["sign"] > 0, lambda row: [{**row, "day": row["day"] + timedelta(days=31)}]),
    "a token more": (lambda row: row["sign"] > 0, lambda row: [changed(row, quantity=Decimal(1))]),
    "a replacement that names nobody": (lambda row: row["sign"] > 0, lambda row: [{**row, "corrects_lsns": None}]),
    "a replacement that names one of two": (
        names_two,
        lambda row: [{**row, "corrects_lsns": row["corrects_lsns"][1:]}],
    ),
    "a cent off": (is_priced, lambda row: [changed(row, amount=Decimal("0.01"))]),
    "a price that no version says": (is_priced, lambda row: [changed(row, unit_price=Decimal("0.01"))]),
    "a version of another price": (is_priced, lambda row: [changed(row, price_version=1)]),
    "another currency": (is_priced, lambda row: [{**row, "currency": "XXX"}]),
}
OF_A_PRICE = ("a cent off", "a price that no version says", "a version of another price", "another currency")
ALL_CAUSES = ("repriced", "rejoined", "duplicate")
CAUSES: dict[str, tuple[str, ...]] = dict.fromkeys(PLANTED, ALL_CAUSES) | dict.fromkeys(
    (*OF_A_PRICE, "a replacement that names one of two"), ("rejoined",)
)
"""The causes whose rows can have a fault: here only rejoined rows are priced, or replace two."""
CAUSES["a replacement lost"] = ("repriced", "rejoined")
"""What stands without a repeat is put again: I1 says that a row is gone."""


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize(("fault", "cause"), [(fault, cause) for fault in PLANTED for cause in CAUSES[fault]])
def test_a_fault_in_rows_of_an_earlier_audit_is_found(tables: str, fault: str, cause: str) -> None:
    applies, planted = PLANTED[fault]
    audit(tables, NOW)
    rows = rows_of(tables)
    chosen = next(row for row in rows if row["cause"] == cause and applies(row) and has_quantity(row))
    kept = [row for row in rows if row is not chosen]
    write_deltalake(
        f"{tables}/{Table.USAGE}", pa.Table.from_pylist([*kept, *planted(chosen)], schema=USAGE), mode="overwrite"
    )
    said = audit(tables, NOW)
    assert said is not None
    named = [wrong for wrong in said.faults if isinstance(wrong, dict)]
    assert {wrong["request_id"] for wrong in named} == {chosen["request_id"]}
    assert said.appended == 0


def has_quantity(row: Row) -> bool:
    return any(entry["quantity"] for entry in row["meters"])
