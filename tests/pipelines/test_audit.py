"""The audit finds nothing wrong in what the applications made, and each fault that is planted in it, by its name.

Method: a history of the simulator leaves real tables and a real database; a fault changes one committed row of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.audit.check import Check
from jobs.audit.run import Audit
from jobs.streams import PRICES, USAGE, Table
from tests.clocks import HandClock
from tests.simulation.left import left_by

SEED = 19
"""A history with matches, abandoned, orphaned and superseded rows, prices, stragglers that correct and that drop."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Metered:
    """Where a history has left its tables and its rows."""

    tables: Path
    database: str


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with left_by(SEED, tmp_path_factory.mktemp("audited"), is_audited=True) as world:
        yield Metered(world.tables, world.database)


def checks(spark: SparkSession, metered: Metered) -> dict[str, Check]:
    audit = Audit(spark, str(metered.tables), metered.database, HandClock(), appends=False)
    return {one.check: one for one in audit.run()}


def test_what_the_applications_made_is_proved(spark: SparkSession, metered: Metered) -> None:
    found = checks(spark, metered)
    assert {name: one.says for name, one in found.items() if not one.holds} == {}
    assert all(one.examined > 0 for one in found.values())
    causes = DeltaTable(str(metered.tables / Table.USAGE)).to_pyarrow_table(columns=["cause"])["cause"].to_pylist()
    assert found["I10"].examined == causes.count("stream") < len(causes)


def is_priced(row: Row) -> bool:
    return any(entry["amount"] for entry in row["meters"])


def more_expensive(row: Row) -> Row:
    """More than its completion reported."""
    entry = next(entry for entry in row["meters"] if entry["amount"])
    return {
        **row,
        "meters": [*[e for e in row["meters"] if e is not entry], {**entry, "quantity": entry["quantity"] + 1}],
    }


def older_price(row: Row) -> Row:
    versions = [{**entry, "price_version": 1} if entry["amount"] else entry for entry in row["meters"]]
    return {**row, "meters": versions}


IN_USAGE: dict[str, tuple[Callable[[Row], bool], Callable[[Row], list[Row]], str, str]] = {
    "an event lost": (is_priced, lambda _: [], "I4", "is lost"),
    "an event doubled": (is_priced, lambda row: [row, {**row, "lsn": 10_000}], "I4", "is there 2 times"),
    "a sign turned": (is_priced, lambda row: [{**row, "sign": -1}], "I4", "is there -1 times"),
    "one more than was reported": (is_priced, lambda row: [more_expensive(row)], "I10", "meters is"),
    "an old price version": (is_priced, lambda row: [older_price(row)], "I10", "meters is"),
    "another customer": (is_priced, lambda row: [{**row, "account": "nobody"}], "I4", "is lost"),
    "an outcome of another model": (is_priced, lambda row: [{**row, "model": "other"}], "I10", "model is other"),
    "another currency": (is_priced, lambda row: [{**row, "currency": "XXX"}], "I10", "currency is XXX"),
    "an event moved over a month's end": (
        is_priced,
        lambda row: [{**row, "event_time": row["event_time"].replace(month=row["event_time"].month % 12 + 1, day=1)}],
        "I10",
        "event_time is",
    ),
    "matched, and was superseded": (
        lambda row: row["outcome"] == "superseded",
        lambda row: [{**row, "outcome": "matched"}],
        "I10",
        "outcome is matched",
    ),
}


@pytest.mark.parametrize("fault", IN_USAGE)
def test_a_fault_in_usage_is_found_and_named(spark: SparkSession, metered: Metered, tmp_path: Path, fault: str) -> None:
    applies, planted, check, says = IN_USAGE[fault]
    copytree(metered.tables, tmp_path / "tables")
    path = str(tmp_path / "tables" / Table.USAGE)
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    chosen = next(row for row in rows if applies(row))
    kept = [row for row in rows if row is not chosen]
    changed = pa.Table.from_pylist([*kept, *planted(chosen)], schema=USAGE)
    write_deltalake(path, changed, mode="overwrite")
    found = checks(spark, Metered(tmp_path / "tables", metered.database))
    assert not found[check].holds
    assert says in found[check].says
    assert str(chosen["request_id"]) in found[check].says


def of_usage(path: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    """Write the table anew, as if these were its rows."""
    table = str(path / Table.USAGE)
    rows = sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: row["lsn"])
    write_deltalake(table, pa.Table.from_pylist(change(rows), schema=USAGE), mode="overwrite")


def of_prices(path: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    rows = DeltaTable(str(path / Table.PRICES)).to_pyarrow_table().to_pylist()
    write_deltalake(str(path / Table.PRICES), pa.Table.from_pylist(change(rows), schema=PRICES), mode="overwrite")


IN_TABLES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "the first row of usage lost": (lambda path: of_usage(path, lambda rows: rows[1:]), "I1", "1 rows are missing"),
    "a row of usage lost and another doubled": (
        lambda path: of_usage(path, lambda rows: [rows[0], rows[2], *rows[2:]]),
        "I1",
        "some are lost and others doubled",
    ),
    "all of usage gone": (lambda path: rmtree(path / Table.USAGE), "I1", "gone"),
    "all of the journal gone": (lambda path: rmtree(path / Table.JOURNAL), "I1", "gone"),
    "a later price never taken": (lambda path: of_prices(path, lambda rows: rows[:-1]), "I10", "lacks"),
    "a price halved": (
        lambda path: of_prices(path, lambda rows: [{**rows[0], "unit_price": Decimal("0.5")}, *rows[1:]]),
        "I10",
        "otherwise",
    ),
    "no day": (
        lambda path: of_usage(path, lambda rows: [{**row, "day": None} for row in rows]),
        "I10",
        "day is None",
    ),
}


@pytest.mark.parametrize("fault", IN_TABLES)
def test_a_fault_in_the_tables_is_found(spark: SparkSession, metered: Metered, tmp_path: Path, fault: str) -> None:
    plant, check, says = IN_TABLES[fault]
    copytree(metered.tables, tmp_path / "tables")
    plant(tmp_path / "tables")
    found = checks(spark, Metered(tmp_path / "tables", metered.database))
    assert not found[check].holds
    assert says in found[check].says
    assert set(found) == {"I1", "I4", "I5", "I6", "I8", "I10"}


IN_DATABASE = {
    "a window that says one more": ("UPDATE usage_windows SET quantity = quantity + 1 {some}", "I6", "usage is"),
    "a window in another currency": ("UPDATE usage_windows SET currency = 'XXX' {some}", "I6", "usage is"),
    "a window of another customer": ("UPDATE usage_windows SET account = 'nobody' {some}", "I6", "usage is"),
    "a window at another price": ("UPDATE usage_windows SET unit_price = unit_price + 1 {priced}", "I6", "usage is"),
    "a straggler decided otherwise": ("UPDATE stragglers SET decision = 'correct' {dropped}", "I6", "usage is"),
    "a day that says one more": ("UPDATE usage_days SET quantity = quantity + 1 {one}", "I6", "days"),
    "a session that counts one more": ("UPDATE sessions SET events = events + 1 {live}", "I5", "in sessions"),
    "a correction left out": ("DELETE FROM corrections {one}", "I8", "is no correction"),
    "a correction of another quantity": (
        "UPDATE corrections SET new_quantity = new_quantity + 1 {one}",
        "I8",
        "another",
    ),
}
FIRST = "WHERE ctid = (SELECT min(ctid) FROM {table} WHERE {which})"


@pytest.mark.parametrize("fault", IN_DATABASE)
def test_a_fault_in_what_billing_made_is_found_and_named(spark: SparkSession, metered: Metered, fault: str) -> None:
    statement, check, says = IN_DATABASE[fault]
    table = next(
        word for word in statement.split() if word.startswith(("usage_", "stragglers", "corrections", "sessions"))
    )
    which = {
        "one": "true",
        "live": "retracted_at IS NULL",
        "some": "quantity <> 0",
        "priced": "unit_price > 0 AND quantity <> 0",
        "dropped": "decision = 'drop'",
    }
    chosen = {name: FIRST.format(table=table, which=condition) for name, condition in which.items()}
    with a_copy_of(metered.database) as database:
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(statement.format(**chosen).encode()).rowcount == 1
        found = checks(spark, Metered(metered.tables, database))
    assert not found[check].holds
    assert says in found[check].says


@contextmanager
def a_copy_of(database: str) -> Iterator[str]:
    """The address of a copy; nobody may be in the original meanwhile."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    server = psycopg.conninfo.make_conninfo(database, dbname="template1")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE planted TEMPLATE "{name}"'.encode())
        try:
            yield psycopg.conninfo.make_conninfo(database, dbname="planted")
        finally:
            connection.execute("DROP DATABASE planted WITH (FORCE)")
