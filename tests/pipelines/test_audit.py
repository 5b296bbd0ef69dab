"""The audit finds nothing wrong in what the applications made, and each fault that is planted in it, by its name.

Method: a history of the simulator leaves real tables and a real database; a fault changes one committed row of them.
The whole audit looks for what is planted in the tables; its proof of the database, without Spark's tasks, for what is
planted there. `tests/planted_faults` has the worst of both kinds looked for by the whole audit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from jobs.streams import AUTHOR, PRICES, USAGE, Table
from tests.clocks import HandClock
from tests.planted_faults.faults import FAULTS, InDatabase
from tests.simulation.applications import JOBS
from tests.simulation.audits import proved
from tests.simulation.calls import Fault
from tests.simulation.left import a_copy_of, left_by, left_by_steps
from tests.simulation.steps import ENOUGH, Configure, Decide, Pass, Publish, Retain, Run, Send, Step

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


DAY = 86_400
ROUND: list[Step] = [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]


def a_catalog() -> list[Step]:
    """Two accounts of a plan that has prices."""
    prices: list[Step] = [Publish(name, 0, "EUR", 7, -90 * DAY) for name in ("requests", "input_tokens")]
    return [*prices, *(Publish("account", 0, "EUR", number, None) for number in range(2))]


def a_year() -> list[Step]:
    """Usage of some days, a long pause, and usage of some days with stragglers; then the first days are removed."""
    steps = a_catalog()
    for number in range(10):
        steps += [Send(0, "usage", request % 2, 10 * number + request, 0, 7) for request in range(3)]
        steps += [Pass(3_600, (0,)), *ROUND, Send(0, "usage", 0, 10 * number + 5, 3_600, 9), Pass(60, (0,)), *ROUND]
        steps += [Pass(110 * DAY if number == 3 else DAY, (0,)), *ROUND]
    return [*steps, Retain(36)]


def a_queue() -> list[Step]:
    """Stragglers that wait, of which one is approved, one rejected, one ended by its deadline, and two wait yet."""
    return [
        *a_catalog(),
        Configure("billing", "late_policy", {"input_tokens": "hold"}),
        Configure("billing", "hold", {"seconds": 3_000, "expires": "correct", "above_age_seconds": 600}),
        *ROUND,
        *[Send(0, "usage", request % 2, request, 0, 7) for request in range(4)],
        Pass(3_600, (0,)),
        *ROUND,
        *[Send(0, "usage", 0, 10 + request, 3_600, 9 + request) for request in range(3)],
        Pass(60, (0,)),
        *ROUND,
        Decide(0, "approve", is_wrong=False),
        Pass(1, (0,)),
        *ROUND,
        Decide(0, "reject", is_wrong=False),
        Pass(3_001, (0,)),
        *ROUND,
        Configure("billing", "hold", {"seconds": 90 * DAY}),
        Run("billing", 0, Fault.CRASH),
        *[Send(0, "usage", 1, 20 + request, 3_600, 19 + request) for request in range(2)],
        Pass(60, (0,)),
        *ROUND,
    ]


@pytest.mark.long
def test_what_is_left_when_days_were_removed_is_proved(spark: SparkSession, tmp_path: Path) -> None:
    with left_by_steps(a_year(), tmp_path) as world:
        made = Metered(world.tables, world.database)
        usage = DeltaTable(str(made.tables / Table.USAGE)).to_pyarrow_table(columns=["lsn"])["lsn"].to_pylist()
        assert len(usage) < max(usage)
        found = checks(spark, made)
        assert {name: found[name].says for name in ("I4", "I6", "I8", "I10") if not found[name].holds} == {}
        assert "was removed" in found["I6"].says
        assert found["I6"].examined > 0
        with psycopg.connect(made.database, autocommit=True) as connection:
            newest = "(SELECT max(window_start) FROM {table})"
            for table, change in (
                ("usage_windows", "late_rows = late_rows + 1"),
                ("corrections", "cause = 'repriced'"),
            ):
                where = f"WHERE window_start = {newest.format(table=table)}"
                assert connection.execute(f"UPDATE {table} SET {change} {where}".encode()).rowcount
        broken = checks(spark, made)
        assert "late_rows is" in broken["I6"].says
        assert "says cause" in broken["I8"].says


def checks(spark: SparkSession, metered: Metered) -> dict[str, Check]:
    audit = Audit(spark, str(metered.tables), metered.database, HandClock(), appends=False)
    return {one.check: one for one in audit.run()}


def test_what_the_applications_made_is_proved(spark: SparkSession, metered: Metered) -> None:
    found = checks(spark, metered)
    assert {name: one.says for name, one in found.items() if not one.holds} == {}
    assert {name for name, one in found.items() if not one.examined} == {"I7", "I9"}, "nothing is invoiced here"
    causes = DeltaTable(str(metered.tables / Table.USAGE)).to_pyarrow_table(columns=["cause"])["cause"].to_pylist()
    assert found["I10"].examined == causes.count("stream") < len(causes)


def test_unbilled_usage_is_not_reported_as_proved(spark: SparkSession, metered: Metered) -> None:
    """As in a database that was lost: windows of nothing are the sum of nothing."""
    usage = DeltaTable(str(metered.tables / Table.USAGE)).to_pyarrow_table(columns=["lsn"])
    with a_copy_of(metered.database) as database:
        with psycopg.connect(database) as connection:
            for table in ("usage_windows", "usage_days", "stragglers", "corrections", "positions"):
                connection.execute(f"DELETE FROM {table}".encode())
        found = checks(spark, Metered(metered.tables, database))
    assert found["I6"].examined == 0
    assert f"; {len(usage)} rows of usage are not billed yet" in found["I6"].says
    assert "not billed yet" not in checks(spark, metered)["I6"].says


def is_priced(row: Row) -> bool:
    return any(entry["amount"] for entry in row["meters"])


def more_expensive(row: Row) -> Row:
    """More than its completion reported."""
    entry = next(entry for entry in row["meters"] if entry["amount"])
    return {
        **row,
        "meters": [*[e for e in row["meters"] if e is not entry], {**entry, "quantity": entry["quantity"] + 1}],
    }


IN_USAGE: dict[str, tuple[Callable[[Row], bool], Callable[[Row], list[Row]], str, str]] = {
    "an event doubled": (is_priced, lambda row: [row, {**row, "lsn": 10_000}], "I4", "is there 2 times"),
    "one more than was reported": (is_priced, lambda row: [more_expensive(row)], "I10", "meters is"),
    "another customer": (is_priced, lambda row: [{**row, "account": "nobody"}], "I4", "is lost"),
    "matched, and was superseded": (
        lambda row: row["outcome"] == "superseded",
        lambda row: [{**row, "outcome": "matched"}],
        "I10",
        "outcome is matched",
    ),
}


@pytest.mark.few_in_ci(2)
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
    held = DeltaTable(str(path / Table.PRICES)).to_pyarrow_table()
    changed = pa.Table.from_pylist(change(held.to_pylist()), schema=PRICES).select(held.column_names)
    write_deltalake(str(path / Table.PRICES), changed, mode="overwrite")


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
        "differs from",
    ),
    "a price changed by somebody else": (
        lambda path: of_prices(path, lambda rows: [{**rows[0], "changed_by": "mallory"}, *rows[1:]]),
        "I10",
        "prices has another author than the journal has",
    ),
    "no day": (
        lambda path: of_usage(path, lambda rows: [{**row, "day": None} for row in rows]),
        "I10",
        "day is None",
    ),
}


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("fault", IN_TABLES)
def test_a_fault_in_the_tables_is_found(spark: SparkSession, metered: Metered, tmp_path: Path, fault: str) -> None:
    plant, check, says = IN_TABLES[fault]
    copytree(metered.tables, tmp_path / "tables")
    plant(tmp_path / "tables")
    found = checks(spark, Metered(tmp_path / "tables", metered.database))
    assert not found[check].holds
    assert says in found[check].says
    assert set(found) == {"I1", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I12"}


def test_tables_of_a_release_that_kept_no_author_are_proved(
    spark: SparkSession, metered: Metered, tmp_path: Path
) -> None:
    """They grow when joins of this one begins, which an audit does not wait for."""
    tables = tmp_path / "tables"
    copytree(metered.tables, tables)
    for table in (Table.ACCOUNTS, Table.PRICES):
        versions = DeltaTable(f"{tables}/{table}").to_pyarrow_table()
        earlier = versions.drop_columns([name for name in (*AUTHOR, "ends_at") if name in versions.column_names])
        assert any(versions["changed_by"].to_pylist())
        write_deltalake(f"{tables}/{table}", earlier, mode="overwrite", schema_mode="overwrite")
    found = checks(spark, Metered(tables, metered.database))
    assert {check: one.says for check, one in found.items() if not one.holds} == {}


TOLD_AS_STRAGGLER = """
    INSERT INTO stragglers (
        usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, late_seconds,
        decision, quantity, unit_price, currency, price_version
    )
    SELECT 1, meter, account, model, 'r0', window_start, window_start, window_start, 0,
           '{decision}', quantity, unit_price, currency, price_version
    FROM usage_windows {some}
"""
IS_DROPPED = """
    (usage_lsn, meter) = (
        SELECT usage_lsn, meter FROM stragglers WHERE decision = 'drop' AND quantity > 0
        ORDER BY usage_lsn, meter LIMIT 1
    )
"""
BILLED_AS_CORRECTION = f"""
    INSERT INTO corrections (
        usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, decision,
        old_quantity, new_quantity, old_amount, new_amount
    )
    SELECT usage_lsn, meter, ARRAY[usage_lsn], window_start, account, model, currency, 'stream', 'correct',
           0, quantity, 0, amount
    FROM stragglers WHERE {IS_DROPPED}
"""
OF_STRAGGLER = """
    (usage_lsn, meter) = (
        SELECT usage_lsn, meter FROM corrections WHERE cause = 'stream' AND cardinality(usage_lsns) = 1
        ORDER BY usage_lsn, meter LIMIT 1
    )
"""
IN_DATABASE: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a window that says one more": (("UPDATE usage_windows SET quantity = quantity + 1 {some}",), "I6", "quantity is"),
    "a window in another currency": (("UPDATE usage_windows SET currency = 'XXX' {some}",), "I6", "quantity is"),
    "a window of another customer": (("UPDATE usage_windows SET account = 'nobody' {some}",), "I6", "quantity is"),
    "a window at another price": (
        ("UPDATE usage_windows SET unit_price = unit_price + 1 {priced}",),
        "I6",
        "unit_price is",
    ),
    "a window at half its price beside a dropped straggler": (
        (
            TOLD_AS_STRAGGLER.replace("{decision}", "drop").replace("{some}", "{priced}"),
            "UPDATE usage_windows SET unit_price = unit_price / 2 {priced}",
        ),
        "I6",
        "unit_price is",
    ),
    "a window that counts other late rows": (
        ("UPDATE usage_windows SET late_rows = late_rows + 1 {some}",),
        "I6",
        "late_rows is",
    ),
    "a window that counts another late quantity": (
        ("UPDATE usage_windows SET late_quantity = late_quantity + 1 {some}",),
        "I6",
        "late_quantity is",
    ),
    "a window that counts others that were not reported": (
        ("UPDATE usage_windows SET unmetered_rows = unmetered_rows + 1 {some}",),
        "I6",
        "unmetered_rows is",
    ),
    "a window that nothing corrected": (
        ("UPDATE usage_windows SET corrected = NOT corrected {some}",),
        "I6",
        "corrected is",
    ),
    "a window that ends elsewhere": (
        ("UPDATE usage_windows SET window_end = window_end + interval '1 h' {some}",),
        "I6",
        "is_minute is",
    ),
    "a straggler decided otherwise": (("UPDATE stragglers SET decision = 'correct' {dropped}",), "I6", "decision is"),
    "a straggler of another customer": (("UPDATE stragglers SET account = 'nobody' {one}",), "I6", "account is"),
    "a straggler of another model": (("UPDATE stragglers SET model = 'other' {one}",), "I6", "model is"),
    "a straggler of another minute": (
        ("UPDATE stragglers SET window_start = window_start - interval '1 min' {one}",),
        "I6",
        "straggler",
    ),
    "a straggler that was less late": (("UPDATE stragglers SET late_seconds = 0.5 {one}",), "I6", "late_us is"),
    "in time, and told as dropped": ((TOLD_AS_STRAGGLER.replace("{decision}", "drop"),), "I6", "comes of nothing"),
    "in time, and told as a straggler that corrects": (
        (TOLD_AS_STRAGGLER.replace("{decision}", "correct"),),
        "I6",
        "comes of nothing",
    ),
    "a straggler that the policy drops is billed": (
        (
            BILLED_AS_CORRECTION,
            f"UPDATE stragglers SET decision = 'correct' WHERE {IS_DROPPED}",
        ),
        "I6",
        "decision is",
    ),
    "a straggler and its correction both gone": (
        (f"DELETE FROM stragglers WHERE {OF_STRAGGLER}", f"DELETE FROM corrections WHERE {OF_STRAGGLER}"),
        "I6",
        "is missing",
    ),
    "a straggler and its correction of another quantity": (
        (
            f"UPDATE stragglers SET quantity = quantity + 50 WHERE {OF_STRAGGLER}",
            f"UPDATE corrections SET new_quantity = new_quantity + 50 WHERE {OF_STRAGGLER}",
        ),
        "I6",
        "quantity is",
    ),
    "a day that says one more": (("UPDATE usage_days SET quantity = quantity + 1 {one}",), "I6", "the day"),
    "a day at another price": (("UPDATE usage_days SET unit_price = unit_price * 2 {priced}",), "I6", "unit_price is"),
    "a day moved over a month's end": (("UPDATE usage_days SET day = day + 40 {one}",), "I6", "the day"),
    "a day of other dimensions": (
        ('UPDATE usage_days SET dimensions = \'{{"region": "eu"}}\' {one}',),
        "I6",
        "the day",
    ),
    "a day of other dimensions than have room": (
        ("UPDATE usage_days SET dimensions = NULL, is_other = true {one}",),
        "I6",
        "the day",
    ),
    "a day of other rows": (("UPDATE usage_days SET usage_rows = usage_rows + 5 {one}",), "I6", "usage_rows is"),
    "an hour that counts one more": (("UPDATE usage_hours SET quantity = quantity + 1 {one}",), "I6", "the hour"),
    "a month that is lost": (("DELETE FROM usage_months {one}",), "I6", "the month"),
    "a session that counts one more": (("UPDATE sessions SET events = events + 1 {live}",), "I5", "events is"),
    "a session moved": (
        (
            (
                "UPDATE sessions SET session_start = session_start - interval '20 d', "
                "session_end = session_end - interval '20 d' {live}"
            ),
        ),
        "I5",
        "comes of nothing",
    ),
    "a session cut in two that touch": (
        (
            (
                "INSERT INTO sessions (account, user_id, session_start, session_end, events, version) "
                "SELECT account, user_id, session_end + interval '1 us', session_end + interval '1 us', 1, 1 "
                "FROM sessions {counting}"
            ),
            "UPDATE sessions SET events = events - 1 {counting}",
        ),
        "I5",
        "the session",
    ),
    "a correction left out": (("DELETE FROM corrections {of_stream}",), "I8", "is no correction"),
    "a correction of another quantity": (
        ("UPDATE corrections SET new_quantity = new_quantity + 1 {one}",),
        "I8",
        "and its usage",
    ),
    "a correction from another quantity to another": (
        ("UPDATE corrections SET old_quantity = old_quantity + 100, new_quantity = new_quantity + 100 {one}",),
        "I8",
        "never was",
    ),
    "a correction from another amount to another": (
        (
            (
                "UPDATE corrections SET old_amount = coalesce(old_amount, 0) + 100, "
                "new_amount = coalesce(new_amount, 0) + 100 {one}"
            ),
        ),
        "I8",
        "never was",
    ),
    "a correction of another window": (
        ("UPDATE corrections SET window_start = window_start - interval '9 d' {one}",),
        "I8",
        "of usage",
    ),
    "a correction of another customer": (("UPDATE corrections SET account = 'nobody' {one}",), "I8", "says account"),
    "a correction of another model": (("UPDATE corrections SET model = 'other' {one}",), "I8", "says model"),
    "a correction of another currency": (("UPDATE corrections SET currency = 'XXX' {one}",), "I8", "says currency"),
    "a correction out of nothing": (
        (
            (
                "INSERT INTO corrections (usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, "
                "old_quantity, new_quantity) SELECT 999999, 'requests', ARRAY[999999], window_start, account, model, "
                "currency, 'duplicate', 10, 1 FROM usage_windows {some}"
            ),
        ),
        "I8",
        "names usage that changed nothing",
    ),
    "a correction of another cause and quantity": (
        ("UPDATE corrections SET cause = 'duplicate', new_quantity = new_quantity + 5 {of_stream}",),
        "I8",
        "says cause",
    ),
    "a correction of another decision": (
        ("UPDATE corrections SET decision = NULL {of_stream}",),
        "I8",
        "says decision",
    ),
    "usage in two corrections": (
        (
            (
                "INSERT INTO corrections SELECT usage_lsn + 1000000, meter, ARRAY[usage_lsn + 1000000, usage_lsn], "
                "window_start, account, model, currency, dimensions, cause, decision, old_quantity, new_quantity, "
                "old_amount, new_amount FROM corrections {of_stream}"
            ),
        ),
        "I8",
        "names usage that changed nothing",
    ),
}
FIRST = "WHERE ctid = (SELECT min(ctid) FROM {table} WHERE {which})"
CHANGES = re.compile(r"(?:UPDATE|FROM) (usage_\w+|stragglers|corrections|sessions)\b")


@pytest.mark.few_in_ci(8)
@pytest.mark.parametrize("fault", IN_DATABASE)
def test_the_audit_finds_and_names_each_planted_fault(metered: Metered, fault: str) -> None:
    statements, check, says = IN_DATABASE[fault]
    which = {
        "one": "true",
        "live": "retracted_at IS NULL",
        "counting": "retracted_at IS NULL AND events > 1",
        "some": "quantity <> 0 AND price_version IS NOT NULL",
        "priced": "unit_price > 0 AND quantity <> 0",
        "dropped": "decision = 'drop'",
        "of_stream": "cause = 'stream'",
    }
    with a_copy_of(metered.database) as database:
        with psycopg.connect(database, autocommit=True) as connection:
            for statement in statements:
                table = CHANGES.findall(statement)[0]
                chosen = {name: FIRST.format(table=table, which=condition) for name, condition in which.items()}
                assert connection.execute(statement.format(**chosen).encode()).rowcount >= 1
        found = proved(str(metered.tables), database)
    assert says in found[check].first


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with left_by_steps(a_queue(), tmp_path_factory.mktemp("waiting")) as world:
        yield Metered(world.tables, world.database)


CHEAP = {name: place for name, places in FAULTS.items() for place in places if isinstance(place, InDatabase)}


@pytest.mark.few_in_ci(5)
@pytest.mark.parametrize("fault", CHEAP)
def test_a_fault_of_the_thirteen_in_postgres_is_found_and_named(metered: Metered, fault: str) -> None:
    with a_copy_of(metered.database) as database:
        with psycopg.connect(database, autocommit=True) as connection:
            named = CHEAP[fault].change(connection)
        said = proved(str(metered.tables), database)[CHEAP[fault].check].first
    assert CHEAP[fault].says in said
    assert [word for word in named if word not in said] == []


HELD = "WHERE decision = 'hold'"
APPROVED = "WHERE decision = 'approve'"
IN_QUEUE = {
    "one that waits is gone": (f"DELETE FROM stragglers {HELD}", "I6", "is missing"),
    "one that waits is told dropped": (f"UPDATE stragglers SET decision = 'drop' {HELD}", "I6", "decision is drop"),
    "one that waits has another deadline": (
        f"UPDATE stragglers SET hold_until = hold_until + interval '1 h' {HELD}",
        "I6",
        "hold_until is",
    ),
    "one that waits has a place among those that do not": (
        f"UPDATE stragglers SET settled = 7 {HELD}",
        "I6",
        "waits is",
    ),
    "one that waits has another day": (f"UPDATE stragglers SET day = day + 40 {HELD}", "I6", "day is"),
    "what was approved is told rejected": (
        f"UPDATE stragglers SET decision = 'reject' {APPROVED}",
        "I6",
        "decision is reject instead of approve",
    ),
    "somebody else approved it": (f"UPDATE stragglers SET decided_by = 'bob' {APPROVED}", "I6", "decided_by is bob"),
    "approved for another reason": (f"UPDATE stragglers SET reason = 'x' {APPROVED}", "I6", "reason is x"),
    "what was rejected is told approved": (
        "UPDATE stragglers SET decision = 'approve' WHERE decision = 'reject'",
        "I6",
        "decision is approve instead of reject",
    ),
    "what its deadline ended waits again": (
        "UPDATE stragglers SET decision = 'hold', settled = 0 WHERE hold_expires = 'correct' AND decided_by IS NULL",
        "I6",
        "instead of correct",
    ),
    "a correction of what was approved is gone": (f"DELETE FROM corrections {APPROVED}", "I8", "is no correction"),
    "a correction of what was approved begins elsewhere": (
        f"UPDATE corrections SET old_quantity = old_quantity + 5, new_quantity = new_quantity + 5 {APPROVED}",
        "I8",
        "never was",
    ),
}


@pytest.mark.long
def test_a_queue_of_stragglers_is_proved(spark: SparkSession, waiting: Metered) -> None:
    with psycopg.connect(waiting.database) as connection:
        rows = connection.execute("SELECT decision, decided_by FROM stragglers WHERE hold_until IS NOT NULL").fetchall()
    assert set(rows) == {("approve", "ann"), ("reject", "ann"), ("correct", None), ("hold", None)}
    found = checks(spark, waiting)
    assert {name: one.says for name, one in found.items() if not one.holds} == {}


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("fault", IN_QUEUE)
def test_a_fault_in_a_queue_of_stragglers_is_found_and_named(waiting: Metered, fault: str) -> None:
    statement, check, says = IN_QUEUE[fault]
    with a_copy_of(waiting.database) as database:
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(statement.encode()).rowcount >= 1
        found = proved(str(waiting.tables), database)
    assert says in found[check].first
