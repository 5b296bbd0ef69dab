"""What `weir catalog apply` writes, and what the log of changes can tell of it: since when an account is as it is."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic import command

from catalog.file import CatalogFile, parse_catalog
from catalog.store import store, stored
from deployment.capture import Capture, read_capture, refuse_without_log
from deployment.errors import CannotRun
from jobs.runtime.postgres.schema import migrate, migrator
from jobs.streams import CatalogTopic
from laptop import database as embedded
from laptop.ports import free_port
from metering.instants import rfc3339
from tests.database_rows import write
from tests.waiting import wait_until


def file(plan: str = "team", unit_price: str = "0.1", **account: Any) -> CatalogFile:
    price = {"plan": plan, "model": "m", "meter": "requests", "currency": "EUR", "unit_price": unit_price}
    return parse_catalog(
        json.dumps(
            {
                "plans": [{"plan": plan, "name": "Plan"}],
                "accounts": [
                    {"account": "a", "name": "A", "plan": plan, "currency": "EUR", "timezone": "UTC"} | account
                ],
                "prices": [price | {"effective_from": "2026-01-01T00:00:00Z"}],
            }
        )
    )


def account_stored(database: str, catalog: CatalogFile) -> tuple[str, Any, Any]:
    """What storing the catalog did to its account."""
    [change] = [change for change in store(database, catalog) if change.topic == CatalogTopic.ACCOUNTS]
    return change.op, change.after["plan"], change.after["effective_from"]


def changed_at(database: str) -> datetime:
    with psycopg.connect(database) as connection:
        [at] = connection.execute("SELECT changed_at FROM catalog.accounts").fetchone() or [None]
    assert isinstance(at, datetime)
    return at


def test_what_is_so_already_is_not_written_again(database: str) -> None:
    assert [change.op for change in store(database, file())] == ["c", "c", "c"]
    since = changed_at(database)
    assert [change.op for change in store(database, file())] == ["r", "r", "r"]
    assert changed_at(database) == since


def test_an_account_is_written_after_the_prices_of_its_plan(database: str) -> None:
    told = [change.topic for change in store(database, file())]
    assert told == ["catalog.plans", "catalog.prices", "catalog.accounts"]


def test_a_planned_change_takes_effect_now_if_a_file_omits_its_instant(database: str) -> None:
    """Else the plan before would be billed until then, though the file says that it is over."""
    to_come = rfc3339(datetime.now(UTC).replace(microsecond=0) + timedelta(days=200))
    account_stored(database, file())
    assert account_stored(database, file("pro", effective_from=to_come)) == ("u", "pro", to_come)

    before = datetime.now(UTC)
    assert account_stored(database, file("pro")) == ("u", "pro", None)
    assert before - timedelta(seconds=1) < changed_at(database) < datetime.now(UTC) + timedelta(seconds=1)
    assert account_stored(database, file("pro")) == ("r", "pro", None)


def test_a_file_without_an_instant_keeps_a_change_that_has_begun(database: str) -> None:
    begun = rfc3339(datetime.now(UTC).replace(microsecond=0) - timedelta(days=1))
    assert account_stored(database, file(effective_from=begun)) == ("c", "team", begun)
    assert account_stored(database, file()) == ("r", "team", begun)


def test_columns_that_a_file_leaves_out_keep_a_concurrent_change(database: str) -> None:
    """Who changes an account just then: its tags, and whose bill it is part of."""
    write(database, "catalog.plans", {"plan": "team", "name": "Plan"})
    above = [
        {"account": name, "name": name, "plan": "team", "currency": "EUR", "timezone": "UTC"} for name in ("b", "c")
    ]
    write(database, "catalog.accounts", *above)
    store(database, file(tags={"crm": "1"}, parent="b"))
    with ThreadPoolExecutor(1) as another, psycopg.connect(database) as editing:
        editing.execute("""UPDATE catalog.accounts SET tags = '{"crm": "2"}', parent = 'c' WHERE account = 'a'""")
        applied = another.submit(store, database, file(name="A, renamed"))
        waiting = "SELECT FROM pg_locks WHERE NOT granted"
        wait_until(lambda: editing.execute(waiting).fetchone() is not None, "the file waits for them")
        editing.commit()
        applied.result(timeout=30)
        found = editing.execute("SELECT name, tags, parent FROM catalog.accounts WHERE account = 'a'").fetchall()
    assert found == [("A, renamed", {"crm": "2"}, "c")]


def test_a_row_records_when_it_was_changed_by_any_editor(database: str) -> None:
    store(database, file())
    first = changed_at(database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.accounts SET name = name, changed_at = '2020-01-01'")
    assert changed_at(database) == first, "nothing changed"
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.accounts SET name = 'by hand'")
    assert changed_at(database) > first


def test_a_row_is_read_as_it_is_now_and_a_missing_row_is_none(database: str) -> None:
    changes = store(database, file())
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.accounts SET name = 'by hand'")
        connection.execute("DELETE FROM catalog.prices")
    now = stored(database, [*changes, *changes])
    assert [(row.topic, row.op) for row in now] == [("catalog.plans", "r"), ("catalog.accounts", "r")]
    assert now[1].after["name"] == "by hand"


def test_a_refused_file_stores_nothing(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE catalog.accounts ADD CHECK (account <> 'a')")
    with pytest.raises(CannotRun):
        store(database, file())
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT FROM catalog.plans").fetchall() == []


@pytest.mark.parametrize("is_as_told", [True, False])
def test_an_account_of_an_older_release_begins_when_it_was_published(database: str, is_as_told: bool) -> None:
    """To the millisecond, as its record said it: joins holds that, and a snapshot must not begin it anew."""
    with migrator(database) as config:
        command.downgrade(config, "0028")
    at = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    row = {"account": "a", "name": "A", "plan": "p", "currency": "EUR", "timezone": "UTC"}
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.accounts", row)
    said = row | ({} if is_as_told else {"name": "before somebody edited it"}) | {"effective_from": None}
    told = {"topic": "catalog.accounts", "key": '{"account":"a"}', "after": json.dumps(said), "op": "c"}
    write(
        database,
        "catalog_outbox",
        told | {"after": json.dumps(said | {"plan": "earlier"}), "committed_at": at - timedelta(days=1)},
        told | {"committed_at": at},
    )
    before = datetime.now(UTC)
    migrate(database)
    if is_as_told:
        assert changed_at(database) == at.replace(microsecond=123000)
    else:
        assert changed_at(database) >= before - timedelta(seconds=1)


def test_capture_progress_is_unknown_before_the_slot_exists(database: str) -> None:
    assert read_capture(database) == Capture()
    assert read_capture(database).lacks_seconds(datetime.now(UTC)) == 1
    with psycopg.connect(database) as connection:
        connection.execute("SELECT catalog.beat()")
        connection.commit()
        [captured] = connection.execute("SELECT captured_until FROM catalog.capture").fetchone() or [0]
    assert captured is None
    behind = read_capture(database).behind_seconds
    assert behind is not None
    assert 0 <= behind < 60


BEAT_AT = "INSERT INTO catalog.capture_heartbeats VALUES (clock_timestamp() + %s, '0/1')"


def test_a_clock_that_was_ahead_does_not_make_capture_look_current(database: str) -> None:
    """Else who captures nothing would be on time for as long as it was ahead, and nobody would wait for it."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(BEAT_AT, [timedelta(days=1)])
        assert read_capture(database).is_late
        connection.execute(BEAT_AT, [-timedelta(minutes=5)])
        slot = f"weir_catalog_{uuid4().hex}"
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        try:
            behind = read_capture(database).behind_seconds
            connection.execute("SELECT catalog.beat()")
            [beats] = connection.execute("SELECT count(*) FROM catalog.capture_heartbeats").fetchone() or [0]
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    assert behind is not None
    assert 300 <= behind < 360
    assert beats == 2, "the one ahead is gone"


@pytest.mark.parametrize("table", ["plans", "prices", "accounts", "decisions"])
def test_a_truncate_is_refused_because_capture_does_not_report_it(database: str, table: str) -> None:
    store(database, file())
    with (
        psycopg.connect(database) as connection,
        pytest.raises(psycopg.errors.FeatureNotSupported, match=r"is not captured: .* DELETE the rows"),
    ):
        connection.execute(f"TRUNCATE catalog.{table} CASCADE")


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "0001-01-01"])
@pytest.mark.parametrize("table", ["prices", "accounts"])
def test_an_instant_out_of_range_is_refused(database: str, table: str, instant: str) -> None:
    store(database, file())
    with psycopg.connect(database) as connection:
        # Of a price that has begun it may be no other instant either.
        connection.execute("UPDATE catalog.accounts SET effective_from = now() + interval '1 day'")
        connection.execute(
            "INSERT INTO catalog.prices SELECT plan, model, meter, currency, now() + interval '1 day', 1"
            " FROM catalog.prices LIMIT 1"
        )
        with pytest.raises(psycopg.errors.CheckViolation, match="is_a_date"):
            connection.execute(
                f"UPDATE catalog.{table} SET effective_from = %s WHERE effective_from > now()", [instant]
            )


def test_a_database_without_logical_replication_is_refused_with_advice(tmp_path: Path) -> None:
    embedded.prepare(tmp_path)
    port = free_port()
    with (tmp_path / "server.log").open("ab") as log:
        server = subprocess.Popen(embedded.server_command(tmp_path, port, {"wal_level": "replica"}), stderr=log)
    try:
        wait_until(lambda: embedded.ensure_database(tmp_path, port), "Postgres answering")
        url = embedded.database_url(tmp_path, port)
        with pytest.raises(CannotRun, match="does not have this version's schema"):
            refuse_without_log(url)
        migrate(url)
        with pytest.raises(CannotRun, match=r"has wal_level=replica, .*: set wal_level=logical, and restart it\."):
            refuse_without_log(url)
    finally:
        server.send_signal(embedded.STOP_SIGNAL)
        server.wait()


def test_a_database_that_keeps_a_logical_log_is_taken(postgres_url: str) -> None:
    refuse_without_log(postgres_url)


def test_accounts_that_are_added_to_an_empty_catalog_at_once_are_found_by_an_index(database: str) -> None:
    """Else each account reads all that were added before it: 20,000 took more than half a minute."""
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')")
        connection.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency, timezone)"
            " SELECT 'a' || number, 'A', 'p', 'EUR', 'UTC' FROM generate_series(1, 100) AS number"
        )
        read = connection.execute(
            "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables"
            " WHERE schemaname = 'catalog' AND relname IN ('account_zones', 'account_history')"
        ).fetchall()
    assert dict(read) == {"account_zones": 0, "account_history": 0}
