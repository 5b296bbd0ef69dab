"""One calendar of an account: whoever reads a month's money reads the same, whatever was known of the account when.

Usage is made as joins makes it, folded by billing, and read as users do: lines of a bill, bills by key, `weir usage`
by month, and `weir explain --line`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from deltalake import DeltaTable

from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.queries.bill_values import read_values
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from jobs.audit.bills.months import Months, stored_months, wrong_months
from jobs.audit.compare.columns import Wrong
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.sums import COLUMNS, sums
from jobs.explain.database import Stored
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.postgres.schema import migrate, migrator
from jobs.streams import Table
from metering.months import ZoneChange
from tests.database_rows import progress, write
from tests.pipelines.folding import fold_table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

ANGELES = "America/Los_Angeles"
JANUARY, FEBRUARY, MARCH = (date(2026, month, 1) for month in (1, 2, 3))
LAST_EVENING = 31 * DAY + 2 * HOUR
"""2 o'clock on 1 February, which is 18 o'clock on 31 January in Los Angeles."""
ROW = {"account": "a", "name": "A", "plan": "pro", "currency": "EUR", "timezone": ANGELES}


@pytest.fixture
def world(tmp_path: Path) -> HandMade:
    """An account in Los Angeles that nobody has heard of yet (`learnt`), and a price of a cent."""
    world = HandMade(tmp_path)
    world.accounts.clear()
    world.price(timedelta(), "0.01", begins=timedelta())
    return world


def learnt(world: HandMade, at: timedelta, **says: Any) -> None:
    """joins learns a version of the account."""
    world.account(at, **{"timezone": ANGELES, **says})


def used(world: HandMade, at: timedelta, name: str = "r") -> None:
    """100 output tokens, decided some hours later."""
    world.request(at, name=name)
    world.completion(at + MINUTE, name=name)
    world.joined(at + HOUR)


def in_catalog(database: str) -> None:
    write(database, "catalog.plans", {"plan": "pro", "name": "Pro"})
    write(database, "catalog.accounts", ROW)


def billed(database: str, world: HandMade) -> None:
    """What usage has is in the database, and closed."""
    usage = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().sort_by("lsn")
    config = BillingConfig()
    rows = usage.select([name for name in COLUMNS if name in usage.column_names])
    with psycopg.connect(database) as connection:
        fold_table(connection, JOB, sums(rows, EffectiveRules(1, config.deciding)), config, next_position=99)
    progress(database, "billing", START + 90 * DAY)


def amounts(database: str, month: date) -> set[Decimal]:
    """What every reader says that the account owes for a month."""
    backend = Backend(Settings(postgres_url=database))
    with read_only(database) as connection:
        query = UsageQuery(window=Window.MONTH, group_by=(Key.ACCOUNT,), dimensions=("api_key_id",), accounts=("a",))
        rows: list[dict[str, Any]] = [dict(row) for row in usage_rows(connection, query)]
        explained = Stored(connection).lines("a", month)
    return {
        sum((line.amount or Decimal(0) for line in read_bills(backend, month).lines), Decimal(0)),
        sum((value.amount or Decimal(0) for value in read_values(backend, "a", month, "k").values), Decimal(0)),
        sum((row["amount"] for row in rows if _month(row["window_start"]) == month), Decimal(0)),
        sum((row["amount"] or Decimal(0) for row in explained), Decimal(0)),
    }


def _month(start: datetime) -> date:
    """Which month begins then: in UTC or west of it."""
    return start.date().replace(day=1)


def months(database: str) -> Months:
    with psycopg.connect(database) as connection:
        return stored_months(connection, None, None)


def i12(database: str, world: HandMade) -> Wrong:
    return wrong_months(months(database), DeltaTable(f"{world.tables}/{Table.ACCOUNTS}").to_pyarrow_table())


def test_usage_before_its_account_is_in_the_same_month_for_every_reader(database: str, world: HandMade) -> None:
    """The account is learnt three hours after its usage; the audit prices it, on the day that it has."""
    used(world, LAST_EVENING)
    learnt(world, LAST_EVENING + 2 * HOUR)
    used(world, LAST_EVENING + 3 * HOUR, "later")
    assert (said := audit(world.tables, START + 33 * DAY)) is not None
    # Its rows of the catalog hold no changes, so only outcomes are compared.
    assert (said.appended, [fault for fault in said.faults if isinstance(fault, dict)]) == (2, [])
    in_catalog(database)
    billed(database, world)
    assert amounts(database, JANUARY) == {Decimal(1)}
    assert amounts(database, FEBRUARY) == {Decimal(1)}
    assert i12(database, world) == Wrong(2, 0)


def test_an_account_recreated_after_a_month_keeps_its_calendar(database: str, world: HandMade) -> None:
    """It was deleted on 31 January, and is there again on 2 February; on 28 February it uses something."""
    learnt(world, timedelta())
    learnt(world, 30 * DAY + 12 * HOUR, deleted=True, plan=None, currency=None, timezone=None)
    learnt(world, 32 * DAY)
    used(world, 59 * DAY + 2 * HOUR)
    in_catalog(database)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM catalog.accounts")
    write(database, "catalog.accounts", ROW)
    billed(database, world)
    assert amounts(database, FEBRUARY) == {Decimal(1)}
    assert amounts(database, MARCH) == {Decimal(0)}
    assert i12(database, world) == Wrong(1, 0)


def test_the_audit_names_a_month_that_readers_cut_by_another_zone_than_joins(database: str, world: HandMade) -> None:
    learnt(world, timedelta())
    used(world, LAST_EVENING)
    in_catalog(database)
    billed(database, world)
    assert i12(database, world) == Wrong(1, 0)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM catalog.account_zones")
    found = i12(database, world)
    assert (found.examined, found.found) == (1, 1)
    assert found.first == (
        "a 2026-01 is from 2026-01-01T00:00Z to 2026-02-01T00:00Z to readers, "
        "and from 2026-01-01T08:00Z to 2026-02-01T08:00Z to joins"
    )


def test_the_audit_names_a_month_that_has_usage_of_another_one(database: str, world: HandMade) -> None:
    learnt(world, timedelta())
    used(world, LAST_EVENING)
    in_catalog(database)
    billed(database, world)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE usage_days SET day = '2026-03-01'")
    found = i12(database, world)
    assert found.found == 1
    assert found.first.startswith("a 2026-03 has usage from 2026-02-01T02:01Z to 2026-02-01T02:02Z, and is from ")


@contextmanager
def refused(connection: psycopg.Connection[Any], says: str) -> Iterator[None]:
    with pytest.raises(psycopg.errors.CheckViolation, match=says), connection.transaction():
        yield


def test_an_account_or_plan_cannot_be_renamed(database: str, connection: psycopg.Connection[Any]) -> None:
    in_catalog(database)
    write(database, "catalog.plans", {"plan": "free", "name": "Free"})
    with refused(connection, "^account 'a' keeps its name.* insert 'b' beside it, and delete 'a' when"):
        connection.execute("UPDATE catalog.accounts SET account = 'b'")
    with refused(connection, "^plan 'free' keeps its name.* insert 'gratis' beside it with its prices"):
        connection.execute("UPDATE catalog.plans SET plan = 'gratis' WHERE plan = 'free'")
    connection.execute("UPDATE catalog.accounts SET account = 'a', name = 'Other'")
    connection.execute("UPDATE catalog.plans SET plan = plan, name = 'Other'")
    names = "SELECT account AS key, name FROM catalog.accounts UNION ALL SELECT plan, name FROM catalog.plans"
    found = connection.execute(names).fetchall()
    assert sorted(found) == [("a", "Other"), ("free", "Other"), ("pro", "Other")]


def test_a_price_whose_key_changes_with_sql_ends_and_another_begins(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """To the log of changes it is a deletion and a new row, and so it is to the view of contracts."""
    in_catalog(database)
    price = {"plan": "pro", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": START}
    write(database, "catalog.prices", {**price, "unit_price": 1})
    connection.execute("UPDATE catalog.prices SET model = 'n'")
    connection.commit()
    ended = connection.execute("SELECT model, ended_at <= now() FROM catalog.ended_prices").fetchall()
    pays = connection.execute("SELECT model FROM catalog.effective_prices WHERE unit_price IS NOT NULL").fetchall()
    assert (ended, pays) == ([("m", True)], [("n",)])


def test_accounts_that_were_renamed_before_this_version_have_the_zone_that_joins_knows(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    with migrator(database) as config:
        command.downgrade(config, "0034")
    in_catalog(database)
    write(database, "catalog.accounts", {**ROW, "account": "b", "timezone": "UTC"})
    write(database, "catalog.accounts", {**ROW, "account": "z"})
    connection.execute("UPDATE catalog.accounts SET account = 'fresh' WHERE account = 'a'")
    connection.execute("DELETE FROM catalog.accounts WHERE account = 'b'")
    connection.commit()
    connection.execute("UPDATE catalog.accounts SET account = 'b' WHERE account = 'z'")
    connection.commit()
    renamed = connection.execute("SELECT changed_at FROM catalog.accounts WHERE account = 'b'").fetchone()
    connection.commit()
    assert renamed is not None
    before = months(database).calendars
    assert before == {name: (ZoneChange(None, zone),) for name, zone in (("a", ANGELES), ("b", "UTC"), ("z", ANGELES))}
    migrate(database)
    assert months(database).calendars == {
        **before,
        "fresh": (ZoneChange(None, ANGELES),),
        "b": (ZoneChange(None, "UTC"), ZoneChange(renamed[0], ANGELES)),
    }
