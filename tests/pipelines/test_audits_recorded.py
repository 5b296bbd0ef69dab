"""Each audit that is no dry run is a row of `audits`: what it came to, what it corrected, or how far it was.

Method: a history of the simulator leaves real tables and a real database; its billing folds while an audit waits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from io import StringIO
from pathlib import Path
from shutil import copytree
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from cli.output import Format, print_rows
from jobs.audit.application import run
from jobs.audit.check import Check
from jobs.audit.check_rows import COLUMNS, check_rows
from jobs.audit.config import AuditConfig
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.audit.run import Audit, NotBilledError
from jobs.audit.tables.audit_record import Record, record_audit
from jobs.close.config import CloseConfig
from jobs.close.issue import Terms
from jobs.close.readiness import Open
from jobs.close.run import Close
from jobs.queries.bills import read_month
from jobs.retention.tables import _log_dates, _remove
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.kafka.access import KafkaAccess
from jobs.streams import EVENTS_TOPIC, Table
from tests.clocks import HandClock
from tests.dashboard.reader import reader_url
from tests.simulation.applications import simulated
from tests.simulation.calls import Fault
from tests.simulation.left import left_by
from tests.simulation.world import ENOUGH_CALLS, World

SEED = 31
"""A history in which prices come late, requests are rejoined, and events are accepted twice."""
NOW = datetime(2026, 2, 1, tzinfo=UTC)
SOUND = Check("I2", 3, 0, "all is there")
BROKEN = Check("I2", 3, 2, "partition 0 of events lacks 2 rows")
Row = dict[str, Any]


@dataclass(frozen=True)
class Audited:
    """A history that nobody has audited, and its billing."""

    world: World
    spark: SparkSession

    def audit(self, *, asked: Scope = EVERYTHING, appends: bool = True, wait_seconds: float = 60) -> Audit:
        """One whose rows are folded as soon as it waits for that."""
        where = (self.spark, str(self.world.tables), self.world.database)
        return Audit(*where, HandClock(NOW), asked, appends, wait_seconds, self._told if wait_seconds else _silent)

    def _told(self, text: str) -> None:
        if text.startswith("waiting until billing"):
            self.world.run("billing", ENOUGH_CALLS, Fault.FREEZE)

    def rows(self) -> list[Row]:
        """All of the table, in order."""
        return rows_of(self.world.database)

    def added(self) -> list[Row]:
        """What usage has of audits."""
        found = DeltaTable(f"{self.world.tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
        return [row for row in found if row["cause"] != "stream"]


def _silent(_: str) -> None:
    pass


def rows_of(database: str) -> list[Row]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM audits ORDER BY audit_id").fetchall()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """What is there when all drivers of a history have ended."""
    with left_by(SEED, tmp_path_factory.mktemp("recorded"), is_audited=False) as world:
        yield world


@pytest.fixture
def history(left: World, tmp_path: Path, spark: SparkSession) -> Iterator[Audited]:
    """A copy of it, that goes on."""
    with fresh_copy(left.database) as url:
        world = World(tmp_path, url, SEED, len(left.kafka.topics[EVENTS_TOPIC]))
        copytree(left.tables, world.tables, dirs_exist_ok=True)
        world.settings, world.clock = left.settings, left.clock
        with simulated(left.kafka, world.clock, left.most_few_rows, queries_rest=left.queries_rest):
            yield Audited(world, spark)
            world.close()


@contextmanager
def fresh_copy(url: str) -> Iterator[str]:
    """A database with what another one holds, to which nobody is connected."""
    address = urlsplit(url)
    with psycopg.connect(address._replace(path="/postgres").geturl(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE copied TEMPLATE {address.path[1:]}")
        yield address._replace(path="/copied").geturl()
        server.execute("DROP DATABASE copied WITH (FORCE)")


def billed_to(database: str) -> int:
    """Where billing is."""
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone()
    assert row is not None
    return int(row[0])


def amounts(rows: list[Row]) -> dict[str, dict[str, Decimal]]:
    """What rows of usage change, added up row by row: cause, currency, amount."""
    changed: dict[str, dict[str, Decimal]] = {}
    for row in rows:
        for entry in row["meters"]:
            if entry["unit_price"] is not None and entry["quantity"] is not None:
                of_cause = changed.setdefault(row["cause"], {})
                amount = row["sign"] * entry["quantity"] * entry["unit_price"]
                of_cause[row["currency"]] = of_cause.get(row["currency"], Decimal()) + amount
    return changed


def test_a_row_has_the_result_of_an_audit_and_its_changes_to_the_last_digit(history: Audited) -> None:
    checks = list(record_audit(history.audit(), lambda: [SOUND]))
    assert all(check.holds for check in checks)
    (row,) = history.rows()
    printed = StringIO()
    print_rows(check_rows(checks), COLUMNS, Format.JSON, out=printed)
    assert row["checks"] == json.loads(printed.getvalue())
    assert [each["check"] for each in row["checks"]] == [*(f"I{number}" for number in range(1, 11)), "I12"]
    assert row["finished_at"] >= row["started_at"]
    assert (row["is_proved"], row["failure"], row["unexpected"]) == (True, None, {})
    assert row["billed_to"] == billed_to(history.world.database)
    assert row["corrected"] == Counter(each["cause"] for each in history.added())
    assert set(row["corrected"]) == {"repriced", "rejoined", "duplicate"}
    told = {cause: {c: Decimal(text) for c, text in of.items()} for cause, of in row["changed"].items()}
    assert told == amounts(history.added())
    assert any(amount for of_cause in told.values() for amount in of_cause.values())


@pytest.mark.parametrize("rejoin_seconds", [None, 0])
def test_a_dry_run_leaves_no_row_and_rejoins_within_what_joins_was_started_with(
    history: Audited, rejoin_seconds: int | None
) -> None:
    if rejoin_seconds is not None:
        config = Jsonb({"rejoin_seconds": rejoin_seconds})
        with psycopg.connect(history.world.database) as connection:
            connection.execute("UPDATE jobs SET config = config || %s WHERE job = 'joins'", [config])
    checks = {check.check: check for check in record_audit(history.audit(appends=False), lambda: [SOUND])}
    assert all(check.holds for check in checks.values())
    assert ("rows of cause rejoined" in checks["I8"].says) == (rejoin_seconds is None)
    assert "rows of cause duplicate" in checks["I8"].says
    assert history.rows() == []


def test_an_audit_that_found_a_fault_has_finished_and_proved_nothing(history: Audited) -> None:
    with psycopg.connect(history.world.database) as connection:
        connection.execute("UPDATE usage_days SET quantity = quantity + 1")
    list(record_audit(history.audit(), lambda: [BROKEN]))
    (row,) = history.rows()
    assert row["finished_at"] is not None
    assert (row["is_proved"], row["failure"]) == (False, None)
    assert set(row["unexpected"]) == {"I2", "I6"}
    assert row["unexpected"]["I2"] == 2
    assert row["unexpected"]["I6"] > 0


def test_a_failed_audit_records_its_error_period_and_corrections_so_far(history: Audited) -> None:
    asked = Scope(NOW - timedelta(days=700), NOW)
    with pytest.raises(NotBilledError):
        list(record_audit(history.audit(asked=asked, wait_seconds=0), lambda: [SOUND]))
    (row,) = history.rows()
    assert (row["received_from"], row["occurred_to"]) == (asked.since, asked.until)
    assert row["finished_at"] is not None
    assert row["is_proved"] is False
    assert "audit again when billing makes progress" in row["failure"]
    assert [each["check"] for each in row["checks"] if each["examined"]] == ["I2"]
    assert sum(row["corrected"].values()) == len(history.added()) > 0


def test_a_killed_audit_leaves_its_findings_without_an_end(history: Audited) -> None:
    killed = record_audit(history.audit(), lambda: [BROKEN])
    assert next(killed) == BROKEN
    killed.close()
    (row,) = history.rows()
    assert (row["finished_at"], row["is_proved"], row["failure"]) == (None, False, None)
    assert row["unexpected"] == {"I2": 2}
    assert [each["check"] for each in row["checks"] if each["found"]] == ["I2"]


def test_an_audit_of_a_period_does_not_claim_what_retention_has_removed_of_it(history: Audited) -> None:
    usage = DeltaTable(f"{history.world.tables}/{Table.USAGE}")
    (first, (records, _)), (later, _), *_ = sorted(_log_dates(usage).items())
    _remove(usage, first, records)
    asked = Scope(datetime(first.year, first.month, first.day, tzinfo=UTC) - timedelta(days=1), NOW)
    list(record_audit(history.audit(asked=asked), lambda: [SOUND]))
    (row,) = history.rows()
    assert row["received_from"] > datetime(later.year, later.month, later.day, tzinfo=UTC)


@pytest.mark.parametrize("removed", [timedelta(days=-1), timedelta(), timedelta(days=2)])
def test_an_audit_of_a_period_is_recorded_from_where_everything_was_left_on(database: str, removed: timedelta) -> None:
    asked = Scope(NOW - timedelta(days=40), NOW)
    Record(database, asked).compared(7, NOW, NOW - timedelta(days=40) + removed)
    Record(database, asked).compared(7, None, None)
    Record(database, EVERYTHING).compared(7, NOW, NOW)
    of_period, whole, everything = (row["received_from"] for row in rows_of(database))
    assert of_period == NOW - timedelta(days=40) + max(removed, timedelta())
    assert (whole, everything) == (asked.since, None)


def test_a_database_of_another_version_is_refused(history: Audited) -> None:
    with psycopg.connect(history.world.database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(Refused, match="python -m jobs migrate"):
        next(record_audit(history.audit(), tuple))


@pytest.mark.parametrize(("setting", "seen"), [("*", 1), ('["acme"]', 0), ("", 0), (None, 0)])
def test_only_who_sees_all_accounts_reads_audits(database: str, setting: str | None, seen: int) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO audits (version) VALUES ('1')")
    with psycopg.connect(reader_url(database)) as connection:
        if setting is not None:
            connection.execute("SELECT set_config('weir.accounts', %s, true)", [setting])
        assert connection.execute("SELECT count(*) FROM audits").fetchone() == (seen,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE audits SET is_proved = true")


@pytest.mark.parametrize(
    "wrong", ["finished_at = NULL", "failure = 'x'", """unexpected = '{"I8": 1}'"""], ids=lambda each: each[:10]
)
def test_no_row_is_proved_that_has_no_end_or_a_fault(database: str, wrong: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO audits (version, finished_at, is_proved) VALUES ('1', now(), true)")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(f"UPDATE audits SET {wrong}")


@pytest.fixture
def variables(database: str, tmp_path: Path) -> dict[str, str]:
    """Of an application whose broker never answers."""
    from laptop.jars import connector_jars

    given = {"POSTGRES_URL": database, "TABLES": str(tmp_path / "tables"), "CHECKPOINTS": str(tmp_path / "scratch")}
    given |= {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "JARS": str(connector_jars())}
    return {**os.environ, **{f"WEIR_{name}": value for name, value in given.items()}}


def started(variables: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs", "audit", "--last", "1d"]
    return subprocess.Popen(command, env=variables, start_new_session=True, text=True, stdout=subprocess.PIPE)


def until_a_row(database: str, says: Callable[[Row], bool]) -> Row:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (rows := rows_of(database)) and says(rows[0]):
            return rows[0]
        time.sleep(0.1)
    raise AssertionError("the application has not come so far")


@pytest.mark.long
def test_an_application_that_is_killed_leaves_its_row_without_an_end(variables: dict[str, str], database: str) -> None:
    application = started(variables)
    row = until_a_row(database, lambda _: True)
    os.killpg(application.pid, signal.SIGKILL)
    assert application.wait() == -signal.SIGKILL
    assert rows_of(database) == [row]
    assert (row["finished_at"], row["is_proved"], row["occurred_to"]) == (None, False, None)
    assert timedelta(days=1) <= row["started_at"] - row["received_from"] < timedelta(days=1, minutes=2)


@pytest.mark.long
def test_an_audit_without_a_broker_exits_with_1_and_records_the_error(variables: dict[str, str], database: str) -> None:
    application = started({**variables, "WEIR_SUBMITTED": ""})
    said, _ = application.communicate(timeout=120)
    assert application.returncode == ExitStatus.CRASHED
    (row,) = rows_of(database)
    assert row["finished_at"] is not None
    assert row["is_proved"] is False
    assert "Kafka" in row["failure"]
    assert "crashed" in said


@pytest.mark.parametrize("is_broken", [True, False])
def test_the_exit_status_tells_whether_the_audit_proved_everything(
    database: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, is_broken: bool
) -> None:
    """With the test's own Spark and what Kafka would say."""
    monkeypatch.setattr("jobs.audit.application.spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("jobs.audit.application.conservation", lambda *_: BROKEN if is_broken else SOUND)
    kafka, tables = KafkaAccess(bootstrap="127.0.0.1:1"), str(tmp_path)
    where = Environment(kafka=kafka, postgres_url=database, tables=tables, checkpoints=Path(), jars=Path())
    status = run(AuditConfig(), where, EVERYTHING, HandClock(NOW), appends=True)
    assert status == (ExitStatus.CRASHED if is_broken else ExitStatus.STOPPED)
    (row,) = rows_of(database)
    assert (row["is_proved"], row["failure"]) == (not is_broken, None)


def test_a_close_audits_its_month_and_invoices_what_the_audit_proved(
    history: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real audit, of a history in which prices come late and requests are rejoined."""
    database = history.world.database
    monkeypatch.setattr("jobs.close.run.not_over", lambda *_: None)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P') ON CONFLICT DO NOTHING")
        connection.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency) SELECT DISTINCT account, account, 'p', 'EUR'"
            " FROM usage_days ON CONFLICT DO NOTHING"
        )
        found = connection.execute("SELECT max(date_trunc('month', day))::date FROM usage_days").fetchone()
    assert found is not None

    def audit(scope: Scope) -> bool:
        return all(check.holds for check in record_audit(history.audit(asked=scope), lambda: [SOUND]))

    terms = Terms(CloseConfig(), found[0], NOW, "test", "everything may stay open", tuple(Open))
    rows = list(Close(database, terms, audit).run())
    assert {row["outcome"] for row in rows} == {"issued"}
    (proof,) = history.rows()
    assert proof["corrected"]
    with psycopg.connect(database, row_factory=dict_row) as reader:
        invoices = reader.execute("SELECT account, audit_id, usage_position FROM invoices").fetchall()
        lines = read_month(reader, found[0]).lines
        summed = reader.execute("SELECT sum(exact_amount) AS exact, sum(amount) AS amount FROM invoice_lines")
        totals = summed.fetchone()
    assert {row["audit_id"] for row in invoices} == {proof["audit_id"]}
    assert {row["usage_position"] for row in invoices} == {proof["billed_to"]}
    priced = [line["amount"] for line in lines if line["amount"] is not None]
    assert totals == {
        "exact": sum(priced),
        "amount": sum(amount.quantize(Decimal("0.01"), ROUND_HALF_EVEN) for amount in priced),
    }
    checks = {check.check: check for check in history.audit(appends=False).run()}
    assert (checks["I7"].holds, checks["I9"].holds, checks["I9"].examined) == (True, True, len(invoices))
