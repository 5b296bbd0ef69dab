"""Hours are the sums of minutes and months those of days, to the last digit, whatever changed them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from time import sleep
from typing import Any

import psycopg
import pytest

from jobs.audit.bills.roll_ups import unequal_roll_ups
from jobs.billing.config import BillingConfig
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.downgrade import downgrade
from jobs.runtime.postgres.schema import migrate
from metering.meters import Meter
from metering.vocabulary import LatePolicy
from tests.pipelines.billing import CHEAP, NOON, Price, bill, usage_row
from tests.pipelines.folding import rows_of

EXACT = Context(prec=200)
DEAR = Price(9, Decimal("0.25"))
TABLES = ("usage_hours", "usage_months")
KEY = ("model", "meter", "currency", "price_version", "unit_price")
Sums = dict[tuple[Any, ...], dict[str, Any]]


def summed(rows: Iterable[dict[str, Any]], period: str, added: Iterable[str]) -> Sums:
    """`rows` added up by hand, one after the other."""
    found: Sums = {}
    for row in rows:
        key = (row["account"], row[period], *(row[name] for name in KEY))
        total = found.setdefault(key, defaultdict(Decimal, corrected=False))
        for name in added:
            total[name] = EXACT.add(total[name], Decimal(row[name]))
        total["corrected"] |= row["corrected"]
        if "first_window" in row:
            total["first_window"] = min(total.get("first_window") or row["first_window"], row["first_window"])
            total["last_window_end"] = max(
                total.get("last_window_end") or row["last_window_end"], row["last_window_end"]
            )
            positions = [at for at in (total.get("next_position"), row["next_position"]) if at is not None]
            total["next_position"] = max(positions, default=None)
    return found


def assert_rolled_up(connection: psycopg.Connection[Any], after: str = "") -> None:
    windows = rows_of(connection, "SELECT *, date_trunc('hour', window_start, 'UTC') AS hour FROM usage_windows")
    days = rows_of(connection, "SELECT *, date_trunc('month', day::timestamp)::date AS month FROM usage_days")
    for table, period, rows, added in (
        ("usage_hours", "hour", windows, ("quantity", "late_quantity", "unmetered_rows")),
        ("usage_months", "month", days, ("quantity", "usage_rows")),
    ):
        stored = {
            (row.pop("account"), row.pop(period), *(row.pop(name) for name in KEY)): row
            for row in rows_of(connection, f"SELECT * FROM {table}")
        }
        must = summed(rows, period, added)
        for key, row in stored.items():
            amount = row.pop("amount")
            assert amount == (None if key[-1] is None else EXACT.multiply(row["quantity"], key[-1])), (after, key)
        assert stored == must, after


def random_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Usage of some hours on both sides of a month's end, some of it late, unpriced, not reported or taken back."""
    rows: list[dict[str, Any]] = []
    begins = datetime(2026, 2, 28, 22, tzinfo=UTC)
    for lsn in range(1, count + 1):
        taken_back = chance.choice(rows) if rows and chance.random() < 0.2 else None
        if taken_back is not None and taken_back["sign"] > 0:
            row = {**taken_back, "lsn": lsn, "sign": -1, "cause": "duplicate", "corrects_lsns": [taken_back["lsn"]]}
        else:
            named = chance.choice([None, "a", "b"])
            row = usage_row(
                lsn,
                begins + timedelta(seconds=chance.randrange(4 * 3600)),
                chance.choice([timedelta(seconds=1), timedelta(minutes=4), timedelta(hours=2)]),
                price=chance.choice([CHEAP, DEAR, None]),
                quantities={
                    Meter.REQUESTS: 1,
                    Meter.INPUT_TOKENS: chance.choice([None, Decimal(chance.randint(0, 10**9)) / 10**6]),
                },
                account=chance.choice(["acme", "globex"]),
                model=chance.choice(["m1", "m2", None]),
                day=date(2026, 2, 28) + timedelta(days=chance.randrange(2)),
                dimensions=None if named is None else json.dumps({"api_key_id": named}),
            )
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_roll_ups_equal_the_windows_and_days_after_any_fold(connection: psycopg.Connection[Any], seed: int) -> None:
    chance = random.Random(seed)
    policy = chance.choice(list(LatePolicy))
    config = BillingConfig(late_policy={Meter.INPUT_TOKENS: policy} if policy is not LatePolicy.HOLD else {})
    rows = random_rows(chance, 120)
    while rows:
        width = chance.randint(1, 40)
        batch, rows = rows[:width], rows[width:]
        bill(connection, batch, config, frontier=chance.choice([None, NOON]))
        assert_rolled_up(connection)
        with connection.transaction():
            assert unequal_roll_ups(connection, None, None).found == 0
    assert rows_of(connection, "SELECT 1 AS one FROM usage_months HAVING count(DISTINCT month) = 2")


CHANGES = {
    "a quantity": "UPDATE {table} SET quantity = quantity + 1.000000000001 WHERE meter = 'requests'",
    "a price": "UPDATE {table} SET unit_price = unit_price * 2 WHERE model = 'm1'",
    "a price that was not known": "UPDATE {table} SET unit_price = 1, price_version = 3 WHERE unit_price IS NULL",
    "no position": "UPDATE {table} SET next_position = NULL WHERE model = 'm1'",
    "no correction": "UPDATE {table} SET corrected = NOT corrected",
    "another account": "UPDATE {table} SET account = 'initech' WHERE account = 'acme' AND model = 'm1'",
    "some rows": "DELETE FROM {table} WHERE model = 'm2'",
    "nothing at all": "UPDATE {table} SET quantity = 7 WHERE false",
    "all rows": "DELETE FROM {table}",
}


@pytest.mark.parametrize("table", ["usage_windows", "usage_days"])
def test_roll_ups_follow_whatever_else_writes_windows_and_days(connection: psycopg.Connection[Any], table: str) -> None:
    bill(connection, random_rows(random.Random(5), 80))
    moves = {
        "usage_windows": "UPDATE usage_windows SET window_start = window_start + interval '25 h' WHERE model = 'm2'",
        "usage_days": "UPDATE usage_days SET day = day + 40, first_window = first_window + interval '1 day', "
        "next_position = NULL WHERE model = 'm2'",
    }
    for name, change in {"another time": moves[table], **CHANGES}.items():
        with connection.transaction():
            changed = connection.execute(change.format(table=table).encode()).rowcount
        assert changed or name == "nothing at all", name
        assert_rolled_up(connection, name)
    bill(connection, random_rows(random.Random(6), 20), next_position=500)
    with connection.transaction():
        connection.execute(f"TRUNCATE {table}".encode())
    assert_rolled_up(connection, "a truncation")


def wait_for_a_lock(database: str, work: Future[None]) -> None:
    """Until something waits for one, or `work` is done."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(database, autocommit=True) as server:
        while not work.done() and not server.execute(waits).fetchall()[0][0]:
            sleep(0.01)


def test_a_repair_beside_a_fold_loses_nothing_that_the_fold_has_added(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """What is read again is of all models of the account's month, also of those that the repair leaves as they are."""
    bill(connection, [usage_row(lsn, NOON, model=f"m{lsn}") for lsn in (1, 2)])
    with psycopg.connect(in_schema(database)) as fold, ThreadPoolExecutor(1) as pool:
        fold.execute(
            "UPDATE usage_days SET next_position = 77, last_window_end = last_window_end + interval '1 h' "
            "WHERE model = 'm2'"
        )

        def repair() -> None:
            with connection.transaction():
                connection.execute("DELETE FROM usage_days WHERE model = 'm1'")

        connection.rollback()
        repaired = pool.submit(repair)
        wait_for_a_lock(database, repaired)
        fold.commit()
        repaired.result()
    assert_rolled_up(connection)


def test_an_upgrade_fills_hours_and_months(database: str, connection: psycopg.Connection[Any]) -> None:
    bill(connection, random_rows(random.Random(9), 60))
    connection.rollback()
    before = {name: rows_of(connection, f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4, 5, 6") for name in TABLES}
    connection.rollback()
    downgrade(database, "0062")
    migrate(database)
    assert all(before.values())
    assert {name: rows_of(connection, f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4, 5, 6") for name in TABLES} == before
    bill(connection, random_rows(random.Random(10), 20), next_position=100)
    assert_rolled_up(connection)


def test_roll_ups_are_kept_by_the_schema_before_and_after_an_upgrade(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    rows = random_rows(random.Random(11), 90)
    for schema, first in (("0151", 0), ("head", 30), ("0151", 60)):
        connection.rollback()
        if schema == "head":
            migrate(database)
        else:
            downgrade(database, schema)
        bill(connection, rows[first : first + 30], next_position=first + 31)
        assert_rolled_up(connection, schema)


@pytest.mark.parametrize("years", [0, 40, 300])
def test_hours_are_those_of_utc_in_any_session_and_year(connection: psycopg.Connection[Any], years: int) -> None:
    bill(connection, random_rows(random.Random(12), 30))
    with connection.transaction():
        connection.execute("SET LOCAL timezone = 'Asia/Kolkata'")
        connection.execute(
            "UPDATE usage_windows SET window_start = window_start - make_interval(years => %s), quantity = 7",
            [years],
        )
    assert_rolled_up(connection)


@pytest.mark.parametrize("table", ["usage_windows", "usage_days", *TABLES])
def test_rows_that_a_batch_changes_all_at_once_stay_in_their_pages(
    connection: psycopg.Connection[Any], table: str
) -> None:
    """In another page each would need an entry in every index."""
    places = f"SELECT account, (ctid::text::point)[0]::int AS page FROM {table} ORDER BY account"
    batch = [usage_row(lsn, account=f"account-{lsn}") for lsn in range(1, 301)]
    bill(connection, batch)
    before = rows_of(connection, places)
    bill(connection, [{**row, "lsn": row["lsn"] + 300} for row in batch], next_position=601)
    assert rows_of(connection, places) == before
    assert len({row["page"] for row in before}) > 5


def test_an_upgrade_waits_for_a_fold_that_writes_days_before_windows(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """As one with members of periods does. Neither waits for the other."""
    bill(connection, random_rows(random.Random(9), 20))
    connection.execute("DELETE FROM positions")
    connection.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 21)")
    connection.commit()
    downgrade(database, "0062")
    with psycopg.connect(in_schema(database)) as fold, ThreadPoolExecutor(1) as pool:
        fold.execute("SELECT next_position FROM positions WHERE job = 'billing' AND input = 'usage' FOR UPDATE")
        fold.execute("UPDATE usage_days SET quantity = quantity + 1")
        upgraded = pool.submit(migrate, database)
        wait_for_a_lock(database, upgraded)
        fold.execute("UPDATE usage_windows SET quantity = quantity + 1")
        fold.commit()
        upgraded.result()
    assert_rolled_up(connection)


@pytest.mark.parametrize("table", TABLES)
def test_a_reader_sees_hours_and_months_of_its_own_accounts(
    database: str, connection: psycopg.Connection[Any], table: str
) -> None:
    bill(connection, random_rows(random.Random(3), 40))
    found = []
    for accounts in ("", '["acme"]', "*"):
        with psycopg.connect(in_schema(database)) as reader:
            reader.execute("SET LOCAL ROLE weir_api_reader")
            reader.execute("SELECT set_config('weir.accounts', %s, true)", [accounts])
            rows = reader.execute(f"SELECT DISTINCT account FROM {table} ORDER BY 1".encode()).fetchall()
            found.append([account for (account,) in rows])
    assert found == [[], ["acme"], ["acme", "globex"]]


ONE = "(SELECT min(ctid) FROM {table} WHERE quantity > 0)"
FAULTS = {
    "a quantity": ("UPDATE {table} SET quantity = quantity + 0.000000000001 WHERE ctid = " + ONE, 1, "quantity is"),
    "a correction": ("UPDATE {table} SET corrected = NOT corrected WHERE ctid = " + ONE, 1, "corrected is"),
    "a row that is lost": ("DELETE FROM {table} WHERE ctid = " + ONE, 1, "is None in"),
    "another account's": ("UPDATE {table} SET account = 'initech' WHERE ctid = " + ONE, 2, "quantity is"),
    "another price": ("UPDATE {table} SET unit_price = 77 WHERE ctid = " + ONE, 2, "quantity is"),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_audit_names_a_planted_fault_of_an_hour_or_month(
    database: str, connection: psycopg.Connection[Any], table: str
) -> None:
    bill(connection, random_rows(random.Random(3), 60))
    stored = rows_of(connection, f"SELECT count(*) AS rows FROM {table}")[0]["rows"]
    with connection.transaction():
        assert unequal_roll_ups(connection, None, None).examined > stored
    for name, (change, count, says) in FAULTS.items():
        with connection.transaction(force_rollback=True):
            assert connection.execute(change.format(table=table).encode()).rowcount == 1
            found = unequal_roll_ups(connection, None, None)
            assert found.found == count, name
            assert says in found.first, name
            assert f"the {table.removeprefix('usage_').removesuffix('s')} " in found.first
            assert unequal_roll_ups(connection, date(2026, 2, 1), date(2026, 3, 31)).found == count
            assert unequal_roll_ups(connection, date(2026, 4, 1), None).found == 0
