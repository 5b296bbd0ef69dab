"""Method: random edits of a real catalog, and at each moment the view beside a Python reading of the same three tables.

What somebody sees of it is row-level security's, as of any table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from jobs.runtime.postgres.schema import migrate, migrator
from metering.pricing import Version
from tests.dashboard.reader import reader_url
from tests.specifications.pricing import account_as_of, price_as_of

START = datetime(2026, 3, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
PLANS, MODELS, METERS, CURRENCIES = ("p1", "p2"), ("m1", "m2"), ("requests", "input_tokens"), ("EUR", "USD")
ACCOUNTS = ("acme", "bolt", "globex")
MOMENTS = [START + MICROSECOND * number for number in range(-1, 6)]
ENDS = [*MOMENTS, datetime(2999, 1, 1, tzinfo=UTC)]

Row = dict[str, Any]
Edit = tuple[str, tuple[Any, ...], Any]

moments = st.sampled_from(MOMENTS)
prices = st.tuples(
    st.just("price"),
    st.tuples(*(st.sampled_from(names) for names in (PLANS, MODELS, METERS, CURRENCIES)), moments),
    st.one_of(st.none(), st.sampled_from(ENDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
accounts = st.tuples(
    st.just("account"),
    st.tuples(st.sampled_from(ACCOUNTS)),
    st.one_of(st.none(), st.tuples(st.sampled_from(PLANS), st.sampled_from(CURRENCIES), st.one_of(st.none(), moments))),
)
plans = st.tuples(st.just("plan"), st.tuples(st.sampled_from(PLANS)), st.text("xyz", min_size=1, max_size=3))
edits = st.lists(st.one_of(prices, prices, prices, accounts, accounts, plans), max_size=25)
"""(what, key, what it says from now on; None: it is deleted, and a price as of an instant)."""


@dataclass
class Held:
    """The three tables, in Python."""

    plans: dict[str, str] = field(default_factory=lambda: {plan: plan for plan in PLANS})
    accounts: dict[str, list[Version[tuple[str, str]]]] = field(default_factory=lambda: defaultdict(list))
    """Everything that each account was told to be, in order."""
    prices: dict[tuple[Any, ...], Decimal] = field(default_factory=dict)
    ended: dict[tuple[Any, ...], tuple[Decimal, datetime]] = field(default_factory=dict)
    """What was in force and was deleted, and until when it is."""

    def take(self, edit: Edit, now: datetime) -> None:
        what, key, said = edit
        if what == "plan":
            self.plans[key[0]] = said
        elif what == "account":
            told = self.accounts[key[0]]
            if said is not None:
                told.append(Version(len(told), said[2] or now, said[:2]))
            elif told and told[-1].value is not None:
                told.append(Version(len(told), now, None))
        else:
            before = self.prices.pop(key, None)
            if isinstance(said, int):
                self.ended.pop(key, None)
                self.prices[key] = Decimal(said)
            elif before is not None and (said or now) > key[4]:
                self.ended[key] = before, said or now

    @property
    def every(self) -> dict[tuple[Any, ...], tuple[Decimal, datetime | None]]:
        """Each price that was or is in force, and until when, if that is known by itself."""
        return {**self.ended, **{key: (unit_price, None) for key, unit_price in self.prices.items()}}

    def contracts(self, at: datetime) -> list[tuple[Any, ...]]:
        """What must be in force at `at`: price by price, each looked for among all."""
        found = []
        for account, versions in self.accounts.items():
            version = account_as_of(versions, at, len(versions))
            # Listed from its effective_from on: usage of before the first one has that price all the same.
            if version is None or version.value is None or version.effective_from > at:
                continue
            (plan, currency), begins = version.value, version.effective_from
            ends_of_account = [moment for moment in changes_of(versions) if moment > at]
            for key, (unit_price, ends) in self.every.items():
                of, model, meter, unit, effective_from = key
                if (of, unit) != (plan, currency) or effective_from > at:
                    continue
                others = [other[4] for other in self.every if other[:4] == key[:4]]
                if any(effective_from < other <= at for other in others) or (ends is not None and ends <= at):
                    continue
                later = [other for other in others if other > at]
                until = min([*later, *ends_of_account, *([ends] if ends else [])], default=None)
                contract = (account, plan, self.plans[plan], currency, model, meter)
                found.append((*contract, unit_price, effective_from, until, begins))
        return sorted(found, key=lambda row: row[:6])

    def right_until(self, at: datetime) -> datetime | None:
        begin = [key[4] for key in self.every] + [ends for _, ends in self.ended.values()]
        begin += [moment for versions in self.accounts.values() for moment in changes_of(versions, lists_first=True)]
        return min((each for each in begin if each > at), default=None)


def changes_of(versions: list[Version[tuple[str, str]]], *, lists_first: bool = False) -> list[datetime]:
    """The instants at which another version holds than just before, and at which the first one is listed."""

    def held(at: datetime) -> Version[tuple[str, str]] | None:
        return account_as_of(versions, at, len(versions))

    moments = sorted({version.effective_from for version in versions})
    changes = [moment for moment in moments if held(moment) is not held(moment - MICROSECOND)]
    if lists_first and versions and held(versions[0].effective_from) is versions[0]:
        changes.append(versions[0].effective_from)
    return changes


def apply(database: psycopg.Connection[Any], edit: Edit) -> None:
    """The same by SQL."""
    what, key, said = edit
    if what == "plan":
        database.execute("UPDATE catalog.plans SET name = %s WHERE plan = %s", [said, key[0]])
    elif what == "account" and said is None:
        database.execute("DELETE FROM catalog.accounts WHERE account = %s", key)
    elif what == "account":
        database.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency, effective_from) VALUES (%s, '', %s, %s, %s)"
            " ON CONFLICT (account) DO UPDATE SET plan = excluded.plan, currency = excluded.currency,"
            " effective_from = excluded.effective_from",
            [*key, *said],
        )
    elif not isinstance(said, int):
        of_key = "catalog.prices{} WHERE (plan, model, meter, currency, effective_from) = (%s, %s, %s, %s, %s)"
        if said is not None:
            database.execute(f"UPDATE {of_key.format(' SET deleted_at = %s')}", [said, *key])
        database.execute(f"DELETE FROM {of_key.format('')}", key)
    else:
        database.execute(
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)"
            " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (plan, model, meter, currency, effective_from)"
            " DO UPDATE SET unit_price = excluded.unit_price",
            [*key, said],
        )


COLUMNS = "account, plan, plan_name, currency, model, meter, unit_price, effective_from, in_force_until, account_from"


def contracts(database: psycopg.Connection[Any], at: datetime) -> list[tuple[Any, ...]]:
    asked = f"SELECT {COLUMNS} FROM catalog.contracts_at(%s) ORDER BY account, plan, plan_name, currency, model, meter"
    return database.execute(asked, [at]).fetchall()


@pytest.fixture
def catalog(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction is rolled back by each example, so that none sees another's rows."""
    with psycopg.connect(database) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.commit()
        yield connection


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits)
def test_oracle_the_view_of_effective_prices_equals_its_tables_at_any_instant(
    catalog: psycopg.Connection[Any], changes: list[Edit]
) -> None:
    """Whoever inserts, updates or deletes what, and to the microsecond at which something begins."""
    held = Held()
    for plan in PLANS:
        catalog.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
    now = catalog.execute("SELECT now()").fetchone()
    assert now is not None
    for change in changes:
        apply(catalog, change)
        held.take(change, now[0])
    for at in (*MOMENTS, *ENDS[-1:], now[0] - MICROSECOND, now[0], now[0] + timedelta(days=1)):
        assert contracts(catalog, at) == held.contracts(at)
        until = catalog.execute("SELECT catalog.contracts_right_until(%s)", [at]).fetchone()
        assert until == (held.right_until(at),)
    live = catalog.execute(f"SELECT {COLUMNS} FROM catalog.effective_prices ORDER BY 1, 2, 3, 4, 5, 6").fetchall()
    assert live == held.contracts(now[0]), "the view is of now"
    catalog.rollback()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(prices.filter(lambda edit: not isinstance(edit[2], datetime)), min_size=1, max_size=20))
def test_periods_of_a_price_neither_overlap_nor_leave_a_gap(
    catalog: psycopg.Connection[Any], changes: list[Edit]
) -> None:
    """From its first beginning on a key has one price at each moment; each ends where the next begins, or by itself."""
    for plan in PLANS:
        catalog.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
        for currency in CURRENCIES:
            apply(catalog, ("account", (f"{plan}-{currency}",), (plan, currency, MOMENTS[0])))
    held = Held()
    now = catalog.execute("SELECT now()").fetchone()
    assert now is not None
    for change in changes:
        apply(catalog, change)
        held.take(change, now[0])
    periods: dict[tuple[Any, ...], set[tuple[datetime, datetime | None]]] = defaultdict(set)
    for at in MOMENTS:
        rows = contracts(catalog, at)
        keys = [row[:6] for row in rows]
        assert len(set(keys)) == len(keys), "one price at a moment"
        begun = {key[:4] for key in held.every if key[4] <= at}
        assert {(row[1], row[4], row[5], row[3]) for row in rows} == begun, "and none is missing"
        for row in rows:
            periods[row[1], row[4], row[5], row[3]].add((row[7], row[8]))
    for key, found in periods.items():
        ordered = sorted(found, key=lambda period: period[0])
        assert all(former[1] == latter[0] for former, latter in pairwise(ordered))
        assert ordered[-1][1] == (now[0] if (*key, ordered[-1][0]) in held.ended else None)
    assert {(key, begins) for key, found in periods.items() for begins, _ in found} == {
        (key[:4], key[4]) for key in held.every
    }
    catalog.rollback()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(prices, min_size=1, max_size=25))
def test_differential_contracts_have_the_price_that_usage_of_that_moment_is_priced_by(
    catalog: psycopg.Connection[Any], changes: list[Edit]
) -> None:
    """Of usage that is decided when joins knows all of it: deleted as of whatever moment, and put there again.

    As if each edit had been a transaction of its own, which they are not here: what one of them undoes joins forgets.
    """
    for plan in PLANS:
        catalog.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
        for currency in CURRENCIES:
            apply(catalog, ("account", (f"{plan}-{currency}",), (plan, currency, MOMENTS[0])))
    now = catalog.execute("SELECT now()").fetchone()
    assert now is not None
    there: set[tuple[Any, ...]] = set()
    versions: dict[tuple[Any, ...], list[Version[Decimal]]] = defaultdict(list)
    for lsn, change in enumerate(changes):
        apply(catalog, change)
        _, key, said = change
        if isinstance(said, int):
            versions[key[:4]].append(Version(lsn, key[4], Decimal(said)))
            there.add(key)
        elif key in there:
            versions[key[:4]].append(Version(lsn, key[4], None, said or now[0]))
            there.discard(key)
    for at in (*MOMENTS, now[0] - MICROSECOND, now[0], *ENDS[-1:]):
        held = {key: price_as_of(told, at, len(changes)) for key, told in versions.items()}
        found = {(row[1], row[4], row[5], row[3]): row[6] for row in contracts(catalog, at)}
        assert found == {key: version.value for key, version in held.items() if version is not None}
    catalog.rollback()


def priced(database: str, *edits: Edit) -> None:
    with psycopg.connect(database) as connection:
        for plan in PLANS:
            connection.execute("INSERT INTO catalog.plans VALUES (%s, %s) ON CONFLICT DO NOTHING", [plan, plan])
        for edit in edits:
            apply(connection, edit)


def test_a_planned_price_takes_effect_without_a_write(database: str) -> None:
    """The clock is a side of the join: nothing must be run, refreshed or waited for."""
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        soon = connection.execute("SELECT clock_timestamp() + interval '1.5 s' AS at").fetchone()
        assert soon is not None
        key = ("p1", "m1", "requests", "EUR")
        first, then = ("price", (*key, START), 1), ("price", (*key, soon["at"]), 2)
        priced(database, ("account", ("acme",), ("p1", "EUR", START)), first, then)
        asked = (
            "SELECT unit_price, in_force_until, now() AS asked_at, catalog.contracts_right_until(now()) AS until"
            " FROM catalog.effective_prices"
        )
        seen: list[Row] = []
        while not seen or seen[-1]["unit_price"] == 1:
            seen += connection.execute(asked).fetchall()
            assert seen[-1]["asked_at"] < soon["at"] + timedelta(seconds=30)
        for row in seen:
            is_before = row["asked_at"] < soon["at"]
            assert row["unit_price"] == (1 if is_before else 2)
            assert row["in_force_until"] == row["until"] == (soon["at"] if is_before else None)


def test_what_begins_outside_the_calendar_begins_nothing(database: str) -> None:
    """joins refuses such a change, and no reader but Postgres has such an instant."""
    key = ("p1", "m1", "requests", "EUR")
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*key, START), 1))
    with psycopg.connect(database, autocommit=True) as connection:
        before = contracts(connection, START)
        # Such a row is refused, and was not always.
        for table in ("prices", "accounts"):
            connection.execute(f"ALTER TABLE catalog.{table} DROP CONSTRAINT {table}_effective_from_is_a_date".encode())
        for begins in ("infinity", "-infinity", "10000-01-01Z", "0001-01-01Z BC"):
            connection.execute("INSERT INTO catalog.prices VALUES ('p1', 'm1', 'requests', 'EUR', %s, 5)", [begins])
            connection.execute(
                "INSERT INTO catalog.accounts (account, name, plan, currency, effective_from)"
                " VALUES (%s, '', 'p1', 'EUR', %s)",
                [begins, begins],
            )
            assert contracts(connection, START) == before
            assert connection.execute("SELECT catalog.contracts_right_until(%s)", [START]).fetchone() == (None,)


@pytest.mark.parametrize(
    ("ends", "at", "pays"),
    [
        (None, "-1 s", 2),
        (None, "1 s", None),
        ("1 day", "23 hours", 2),
        ("1 day", "1 day", None),
        ("40 days", "31 days", 3),
        ("-100 years", "1 s", 1),
    ],
)
def test_a_deleted_price_applies_until_its_end_and_its_predecessor_never_again(
    database: str, ends: str | None, at: str, pays: int | None
) -> None:
    """As joins has it. One that ended before it began never was, and where the next begins the end is none."""
    key = ("p1", "m1", "requests", "EUR")
    with psycopg.connect(database) as connection:
        later = connection.execute("SELECT now() + interval '30 days'").fetchone()
        assert later is not None
        begins = ((START, 1), (START + MICROSECOND, 2), (later[0], 3))
        priced(
            database,
            ("account", ("acme",), ("p1", "EUR", START)),
            *(("price", (*key, when), unit) for when, unit in begins),
        )
        connection.execute(
            "UPDATE catalog.prices SET deleted_at = CASE WHEN %(ends)s::text IS NOT NULL"
            " THEN greatest(now() + %(ends)s::interval, '1970-01-01 UTC') END WHERE unit_price = 2",
            {"ends": ends},
        )
        connection.execute("DELETE FROM catalog.prices WHERE unit_price = 2")
        asked = "SELECT unit_price FROM catalog.contracts_at(now() + %s::interval)"
        assert connection.execute(asked, [at]).fetchone() == (None if pays is None else (pays,))
        # Whoever puts it there again takes the end back.
        apply(connection, ("price", (*key, START + MICROSECOND), 2))
        assert connection.execute(asked, [at]).fetchone() == (3 if at == "31 days" else 2,)
        assert connection.execute("SELECT count(*) FROM catalog.ended_prices").fetchone() == (0,)


def test_a_price_of_a_renamed_model_has_ended_under_the_former_name(database: str) -> None:
    """To the log of changes it is a deletion, and another price."""
    key = ("p1", "m1", "requests", "EUR")
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*key, START), 1))
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.prices SET model = 'm2'")
        assert [row[4] for row in contracts(connection, datetime(2999, 1, 1, tzinfo=UTC))] == ["m2"]
        assert [row[4] for row in contracts(connection, START)] == ["m1", "m2"]


@pytest.mark.parametrize(
    ("named", "seen"),
    [(None, []), ([], []), (["acme"], ["acme"]), (["acme", "bolt"], ["acme", "bolt"]), ("*", list(ACCOUNTS))],
)
def test_contracts_of_an_account_are_seen_by_who_may_see_it(
    database: str, named: list[str] | str | None, seen: list[str]
) -> None:
    """The view asks with the rights of who reads it: the owner's would show everybody's prices to everybody."""
    key = ("m1", "requests", "EUR")
    priced(
        database,
        ("account", ("acme",), ("p1", "EUR", START)),
        ("account", ("bolt",), ("p2", "EUR", START)),
        ("account", ("globex",), ("p1", "EUR", START)),
        ("price", ("p1", *key, START), 1),
        ("price", ("p2", *key, START), 2),
        ("price", ("p2", *key, START + timedelta(days=40_000)), 3),
    )
    with psycopg.connect(reader_url(database)) as connection:
        if named is not None:
            setting = named if isinstance(named, str) else json.dumps(named)
            connection.execute("SELECT set_config('weir.accounts', %s, true)", [setting])
        found = connection.execute("SELECT account FROM catalog.effective_prices ORDER BY 1").fetchall()
        assert [account for (account,) in found] == seen
        found = connection.execute("SELECT account FROM catalog.contracts_at(now()) ORDER BY 1").fetchall()
        assert [account for (account,) in found] == seen
        (until,) = connection.execute("SELECT catalog.contracts_right_until(now())").fetchone() or (None,)
        assert (until is not None) == ("bolt" in seen), "nor is it told when another's price begins"


def test_the_earlier_name_of_the_view_reads_the_same_for_one_release(database: str) -> None:
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", ("p1", "m1", "requests", "EUR", START), 1))
    with psycopg.connect(reader_url(database)) as connection:
        assert connection.execute("SELECT * FROM catalog.contracts").fetchall() == [], "nor does it show more"
        connection.execute("SELECT set_config('weir.accounts', '*', true)")
        earlier, present = (
            connection.execute(f"SELECT * FROM catalog.{name}".encode()) for name in ("contracts", "effective_prices")
        )
        assert [column.name for column in earlier.description or ()] == [
            column.name for column in present.description or ()
        ]
        rows = present.fetchall()
        assert len(rows) == 1
        assert earlier.fetchall() == rows


def test_who_could_read_the_view_under_its_earlier_name_reads_both_after_the_upgrade(database: str) -> None:
    role = f"finance_{uuid4().hex[:8]}"
    with migrator(database) as config:
        command.downgrade(config, "0055")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA catalog TO {role}".encode())
        connection.execute(f"GRANT SELECT ON catalog.contracts TO {role}".encode())
        try:
            migrate(database)
            for name in ("contracts", "effective_prices"):
                found = connection.execute("SELECT has_table_privilege(%s, %s, 'SELECT')", [role, f"catalog.{name}"])
                assert found.fetchone() == (True,)
        finally:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("asked", ["account = 'acme'", "plan = 'p1'"])
def test_one_account_and_one_plan_are_found_by_index(database: str, asked: str) -> None:
    """A hundred thousand prices of other plans are not looked at."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO catalog.plans SELECT 'p' || n, '' FROM generate_series(1, 200) AS n;"
            "INSERT INTO catalog.accounts (account, name, plan, currency)"
            " SELECT CASE n WHEN 1 THEN 'acme' ELSE 'a' || n END, '', 'p' || n, 'EUR'"
            " FROM generate_series(1, 200) AS n;"
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)"
            " SELECT 'p' || p, 'm' || m, 'requests', 'EUR', '2026-01-01Z', 1"
            " FROM generate_series(1, 200) AS p, generate_series(1, 50) AS m; ANALYZE"
        )
        plan = connection.execute(f"EXPLAIN SELECT * FROM catalog.effective_prices WHERE {asked}").fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Seq Scan on prices" not in text, text
        assert "Function Scan" not in text, "it is part of the statement"
