"""What an account was at each instant: the database's stretches beside the rule by which joins takes versions.

Method: `differential`; random edits by SQL, and the same ones told as versions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from catalog.deletion import delete_row
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.schema import migrate, migrator
from jobs.streams import CatalogTopic
from metering.pricing import Version
from tests.dashboard.reader import reader_url
from tests.database_rows import write
from tests.specifications.pricing import account_as_of

START = datetime(2026, 3, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MOMENTS = [START + MICROSECOND * number for number in range(-1, 6)]
LATER = datetime(2999, 1, 1, tzinfo=UTC)
ACCOUNTS, PLANS = ("a", "b", "c"), ("p1", "p2")
_PUT = """
    INSERT INTO catalog.accounts (account, name, plan, currency, parent, effective_from)
    VALUES (%s, '', %s, 'EUR', %s, %s)
    ON CONFLICT (account) DO UPDATE SET plan = excluded.plan, parent = excluded.parent,
        effective_from = excluded.effective_from
"""

Edit = tuple[str, str, str | None, datetime | None]
"""(account, plan, parent, since when); a deletion has the plan "", and is as of then."""
instants = st.sampled_from([None, *MOMENTS, LATER])
edits = st.tuples(
    st.sampled_from(ACCOUNTS), st.sampled_from(["", *PLANS, *PLANS]), st.none() | st.sampled_from(ACCOUNTS), instants
)


def apply(database: psycopg.Connection[Any], edit: Edit) -> None:
    account, plan, parent, since = edit
    if plan:
        database.execute(_PUT, [account, plan, parent, since])
        return
    if since is not None:
        # As `weir catalog delete` does it.
        database.execute(
            "UPDATE catalog.accounts SET deleted_at = %s, effective_from = coalesce(effective_from, changed_at)"
            " WHERE account = %s",
            [since, account],
        )
    database.execute("DELETE FROM catalog.accounts WHERE account = %s", [account])


def history(database: psycopg.Connection[Any], at: datetime) -> dict[str, tuple[str, str | None]]:
    rows = database.execute(
        "SELECT account, plan, parent FROM catalog.account_history WHERE holds_from <= %(at)s AND holds_until > %(at)s",
        {"at": at},
    ).fetchall()
    assert len({account for account, *_ in rows}) == len(rows), "an account is one thing at a time"
    return {account: (plan, parent) for account, plan, parent in rows}


@pytest.fixture
def catalog(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction is rolled back by each example."""
    with psycopg.connect(database) as connection:
        for plan in PLANS:
            connection.execute("INSERT INTO catalog.plans VALUES (%s, '')", [plan])
        # A parent need not be there while rows come and go.
        connection.execute("ALTER TABLE catalog.accounts DROP CONSTRAINT accounts_parent_fkey")
        connection.execute("ALTER TABLE catalog.accounts DISABLE TRIGGER check_parent")
        connection.commit()
        yield connection


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(edits, max_size=15))
def test_differential_the_view_of_accounts_equals_the_versions_of_joins(
    catalog: psycopg.Connection[Any], changes: list[Edit]
) -> None:
    catalog.rollback()
    (now,) = catalog.execute("SELECT now()").fetchone() or (START,)
    versions: dict[str, list[Version[tuple[str, str | None]]]] = defaultdict(list)
    for lsn, edit in enumerate(changes):
        account, plan, parent, since = edit
        told = versions[account]
        apply(catalog, edit)
        if plan:
            told.append(Version(lsn, since or now, (plan, parent)))
        elif told and told[-1].value is not None:
            told.append(Version(lsn, since or now, None))
    for at in (MOMENTS[0] - timedelta(days=9_000), *MOMENTS, now - MICROSECOND, now, LATER - MICROSECOND, LATER):
        as_of = {account: account_as_of(told, at, len(changes)) for account, told in versions.items()}
        expected = {account: version.value for account, version in as_of.items() if version is not None}
        assert history(catalog, at) == expected
    catalog.rollback()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(edits, max_size=12), st.sampled_from([*MOMENTS, LATER]))
def test_differential_the_view_has_the_parents_of_each_instant(
    catalog: psycopg.Connection[Any], changes: list[Edit], at: datetime
) -> None:
    catalog.rollback()
    for edit in changes:
        apply(catalog, edit)
    parents = {account: parent for account, (_, parent) in history(catalog, at).items()}
    expected = {(name, name): 0 for name in [*parents, *filter(None, parents.values())]}
    for account in parents:
        line = [account]
        while (parent := parents.get(line[-1])) is not None:
            # Backdated rows can make a circle of then, which has no right answer.
            assume(parent not in line)
            line.append(parent)
        expected |= {(head, account): depth for depth, head in enumerate(line)}
    found = catalog.execute("SELECT head, account, depth FROM catalog.accounts_below_at(%s)", [at]).fetchall()
    assert {(head, account): depth for head, account, depth in found} == expected
    catalog.rollback()


def test_an_account_that_is_deleted_with_sql_ends_when_that_is_committed(catalog: psycopg.Connection[Any]) -> None:
    """As the log of changes tells it: a transaction may be long."""
    apply(catalog, ("a", "p1", None, START))
    catalog.commit()
    catalog.execute("DELETE FROM catalog.accounts")
    catalog.execute("SELECT pg_sleep(0.2)")
    (before,) = catalog.execute("SELECT clock_timestamp()").fetchone() or (START,)
    catalog.commit()
    assert history(catalog, before) == {"a": ("p1", None)}
    (now,) = catalog.execute("SELECT clock_timestamp()").fetchone() or (START,)
    assert history(catalog, now) == {}


def test_a_renamed_account_ended_under_its_former_name(catalog: psycopg.Connection[Any]) -> None:
    """What the database refuses by another trigger, an installation may have allowed."""
    apply(catalog, ("a", "p1", None, START))
    catalog.execute("SET CONSTRAINTS ALL IMMEDIATE")
    catalog.execute("ALTER TABLE catalog.accounts DISABLE TRIGGER refuse_to_rename")
    catalog.commit()
    catalog.execute("UPDATE catalog.accounts SET account = 'b'")
    catalog.commit()
    assert history(catalog, START) == {"a": ("p1", None), "b": ("p1", None)}
    assert history(catalog, LATER) == {"b": ("p1", None)}


def test_a_planned_change_does_not_change_the_account_before_it_begins(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p1", "name": ""}, {"plan": "p2", "name": ""})
    price = {"model": "m", "meter": "requests", "currency": "EUR", "effective_from": START}
    write(database, "catalog.prices", *({**price, "plan": plan, "unit_price": n} for n, plan in enumerate(PLANS)))
    with psycopg.connect(database, autocommit=True) as connection:
        apply(connection, ("a", "p1", None, START))
        apply(connection, ("a", "p2", None, LATER))
        contracts = "SELECT plan, unit_price, in_force_until FROM catalog.effective_prices"
        assert connection.execute(contracts).fetchall() == [("p1", 0, LATER)]
        assert connection.execute("SELECT catalog.contracts_right_until(now())").fetchone() == (LATER,)


@pytest.mark.parametrize("way", ["account", "price"])
def test_an_account_with_a_planned_deletion_pays_until_then(database: str, way: str) -> None:
    write(database, "catalog.plans", {"plan": "p1", "name": "P"})
    key = {"plan": "p1", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": START}
    write(database, "catalog.prices", {**key, "unit_price": 1})
    write(database, "catalog.accounts", {"account": "a", "name": "A", "plan": "p1", "currency": "EUR"})
    delete_row(database, CatalogTopic.ACCOUNTS, {"account": "a"}, LATER, "ann")
    if way == "price":
        delete_row(database, CatalogTopic.PRICES, key, LATER - timedelta(days=1), "ann")
    with psycopg.connect(database, autocommit=True) as connection:
        for at, pays in ((None, 1), (LATER - timedelta(days=2), 1), (LATER, None)):
            found = connection.execute("SELECT unit_price FROM catalog.contracts_at(coalesce(%s, now()))", [at])
            assert found.fetchall() == ([] if pays is None else [(pays,)])
        connection.execute("DELETE FROM catalog.prices")
        with pytest.raises(psycopg.errors.RestrictViolation, match="plan 'p1' is in use until 2999-01-01"):
            connection.execute("DELETE FROM catalog.plans")


def test_a_scope_of_one_account_sees_only_what_it_pays_until_it_ends(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p1", "name": "P"}, {"plan": "p2", "name": "P"})
    price = {"model": "m", "meter": "requests", "currency": "EUR", "effective_from": START, "unit_price": 1}
    write(database, "catalog.prices", *({**price, "plan": plan} for plan in PLANS))
    row = {"name": "A", "currency": "EUR"}
    write(database, "catalog.accounts", {**row, "account": "a", "plan": "p1"}, {**row, "account": "b", "plan": "p2"})
    delete_row(database, CatalogTopic.ACCOUNTS, {"account": "a"}, LATER, "ann")
    with psycopg.connect(reader_url(database)) as reader:
        reader.execute("""SELECT set_config('weir.accounts', '["a"]', true)""")
        for table in ("contracts", "account_history", "accounts_below"):
            assert reader.execute(f"SELECT DISTINCT account FROM catalog.{table}".encode()).fetchall() == [("a",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("DELETE FROM catalog.account_history")


def test_an_upgraded_installation_keeps_its_bills_and_contracts(database: str) -> None:
    """What accounts were before nobody has kept: their parents are those of the rows, as they were until then."""
    write(database, "catalog.plans", {"plan": "p1", "name": "P"})
    price = {"plan": "p1", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": START}
    with migrator(database) as config:
        command.downgrade(config, "0034")
    row = {"name": "A", "plan": "p1", "currency": "EUR"}
    write(database, "catalog.prices", {**price, "unit_price": 1})
    write(database, "catalog.accounts", {**row, "account": "a"}, {**row, "account": "b", "parent": "a"})
    listed = "SELECT account, unit_price, account_from, in_force_until FROM catalog.contracts ORDER BY 1"
    with psycopg.connect(database, autocommit=True) as connection:
        before = connection.execute(listed).fetchall()
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute(listed).fetchall() == before != []
        below = connection.execute("SELECT head, account FROM catalog.accounts_below_at(%s) ORDER BY 1, 2", [START])
        assert below.fetchall() == [("a", "a"), ("a", "b"), ("b", "b")]


def test_grants_on_tables_of_the_catalog_survive_the_upgrade(database: str) -> None:
    role = f"reader_{uuid4().hex}"
    tables = ("accounts", "plans", "prices", "ended_prices", "contracts", "accounts_below")
    with migrator(database) as config:
        command.downgrade(config, "0034")
    write(database, "catalog.plans", {"plan": "p1", "name": "P"})
    write(database, "catalog.accounts", {"account": "a", "name": "A", "plan": "p1", "currency": "EUR"})
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA catalog TO {role}".encode())
        for table in tables:
            connection.execute(f"GRANT SELECT ON catalog.{table} TO {role}".encode())
    try:
        migrate(database)
        with psycopg.connect(database) as reader:
            reader.execute(f"SET ROLE {role}".encode())
            for table in (*tables, "account_history"):
                assert reader.execute(f"SELECT FROM catalog.{table}".encode()).fetchall() == []
            reader.execute("SELECT set_config('weir.accounts', '*', true)")
            for table in tables:
                reader.execute(f"SELECT FROM catalog.{table}".encode())
            assert reader.execute("SELECT plan FROM catalog.plans").fetchall() == [("p1",)]
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_views_of_others_that_keep_the_price_from_its_type_are_named(database: str) -> None:
    with migrator(database) as config:
        command.downgrade(config, "0034")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE VIEW public.finance AS SELECT plan, unit_price FROM catalog.prices")
        with pytest.raises(Refused, match=r"while views read it \((public\.)?finance\): drop them"):
            migrate(database)
        connection.execute("DROP VIEW public.finance")
        connection.execute("CREATE VIEW public.finance AS SELECT plan, unit_price FROM catalog.contracts")
    migrate(database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM public.finance").fetchall() == []


@pytest.mark.parametrize("first", ["plans", "prices"])
def test_an_upgrade_waits_for_transactions_that_store_plans_prices_and_accounts(database: str, first: str) -> None:
    """Neither ends the other, whatever is stored first: the upgrade gives way, and tries again."""
    with migrator(database) as config:
        command.downgrade(config, "0034")
    write(database, "catalog.plans", {"plan": "p1", "name": "P"})
    price = {"plan": "p1", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": START}
    write(database, "catalog.prices", {**price, "unit_price": 1})
    edits = {"plans": "UPDATE catalog.plans SET name = 'Q'", "prices": "UPDATE catalog.prices SET unit_price = 2"}
    with psycopg.connect(database) as editor, ThreadPoolExecutor(1) as pool:
        editor.execute(edits[first].encode())
        migrated = pool.submit(migrate, database)
        with psycopg.connect(database, autocommit=True) as watcher:
            while not watcher.execute("SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation'").fetchall():
                assert not migrated.done()
                time.sleep(0.02)
        if first == "plans":
            editor.execute(edits["prices"].encode())
        apply(editor, ("a", "p1", None, START))
        editor.commit()
        migrated.result(60)
    with psycopg.connect(database) as connection:
        assert history(connection, START) == {"a": ("p1", None)}
