"""Method: random edits of a real catalog and folds that are cut or undone anywhere, at instants that come and go.

At each position the function `catalog.contracts_at` says what the table, and whoever reads it, must have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row, tuple_row
from structlog.testing import capture_logs

from jobs.ingestion.effective_prices import (
    COLUMNS,
    FOLDS_BEFORE_MORE,
    LOOK_SECONDS,
    NOTES_OF_A_FOLD,
    RETRY_SECONDS,
    EffectivePrices,
    fold_effective_prices,
)
from jobs.queries.contracts import ContractQuery, contract_rows, contract_source
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate, migrator
from tests.clocks import HandClock
from tests.dashboard.reader import reader_url
from tests.pipelines.test_contracts_view import ACCOUNTS, MICROSECOND, PLANS, START, apply, edits, priced

EVER = [START + MICROSECOND * number for number in range(-2, 7)] + [datetime(2999, 1, 1, tzinfo=UTC)]
READ = ", ".join(f"paid.{name}" for name in COLUMNS if name != "terms")
ORDER = "ORDER BY account, model, meter, currency, plan"
DEFINED = f"""
SELECT {READ}, coalesce(priced.terms, ended.terms) AS terms FROM catalog.contracts_at(%s) AS paid
LEFT JOIN catalog.prices AS priced USING (plan, model, meter, currency, effective_from)
LEFT JOIN catalog.ended_prices AS ended USING (plan, model, meter, currency, effective_from) {ORDER}
"""
STORED = f"SELECT {', '.join(COLUMNS)} FROM catalog.effective_prices_now {ORDER}"
NOTES = "SELECT account, plan FROM catalog.effective_prices_due WHERE due_at = '-infinity'"

Catalog = psycopg.Connection[dict[str, Any]]
instants = st.sampled_from(EVER)
folds = st.tuples(st.just("fold"), instants, st.integers(1, 3), st.booleans())
"""(what, as of when, how many notes it takes, whether it is undone: its driver was killed)."""
reads = st.tuples(st.just("read"), instants, st.sets(st.sampled_from(ACCOUNTS)))


def defined(database: Catalog, at: datetime) -> list[dict[str, Any]]:
    return database.execute(DEFINED.encode(), [at]).fetchall()


def stored(database: Catalog) -> list[dict[str, Any]]:
    return database.execute(STORED.encode()).fetchall()


def fold_all(database: Catalog, at: datetime, notes: int = NOTES_OF_A_FOLD) -> None:
    with database.cursor(row_factory=tuple_row) as cursor:
        while fold_effective_prices(cursor, at, notes):
            pass


def rows_read(database: Catalog, query: ContractQuery) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in contract_rows(database, query)]


def rows_defined(database: Catalog, query: ContractQuery) -> list[tuple[Any, ...]]:
    """As the readers read, were there no table."""
    with database.transaction(force_rollback=True):
        database.execute("DELETE FROM catalog.effective_prices_progress")
        assert not contract_source(database, query.at, query.accounts).is_stored
        return rows_read(database, query)


@pytest.fixture
def catalog(database: str) -> Iterator[Catalog]:
    """A connection whose transaction is rolled back by each example, so that none sees another's rows."""
    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.commit()
        yield connection


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(edits, folds, folds, reads, reads), max_size=30), instants, st.integers(1, 4))
def test_oracle_the_table_equals_the_view_at_each_position_and_its_readers_see_no_other_price(
    catalog: Catalog, steps: list[Any], last: datetime, notes: int
) -> None:
    """Whatever changed on either side, backdated too, wherever folds were cut, and wherever the clock went."""
    catalog.rollback()
    for plan in PLANS:
        catalog.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
    for step in steps:
        if isinstance(step, list):
            for edit in step:
                apply(catalog, edit)
        elif step[0] == "fold":
            with catalog.transaction(force_rollback=step[3]), catalog.cursor(row_factory=tuple_row) as cursor:
                # One account for each note: notes of plans are spread in pieces, too.
                fold_effective_prices(cursor, step[1], step[2], accounts_per_note=1)
            # Before an instant that it was folded at the table is right for nobody.
            last = last if step[3] else max(last, step[1])
        else:
            query = ContractQuery(step[1], tuple(sorted(step[2])))
            assert rows_read(catalog, query) == rows_defined(catalog, query)
    fold_all(catalog, last, notes)
    assert stored(catalog) == defined(catalog, last)
    for at in EVER:
        query = ContractQuery(at)
        assert rows_read(catalog, query) == rows_defined(catalog, query), "also at an instant that it is not of"


KEY = ("p1", "m1", "requests", "EUR")
STATEMENTS = 5
"""Of a fold that finds something due, and no note of a plan."""
OF_A_PLAN = STATEMENTS + 2
"""It takes that note, and spreads it."""


@pytest.mark.parametrize("behind", range(1, OF_A_PLAN + 1))
def test_a_change_that_is_committed_while_a_fold_runs_is_in_the_table_or_still_noted(
    database: str, behind: int
) -> None:
    """Behind each of its statements: the fold reads what is committed, and not of one moment."""
    priced(database)
    with psycopg.connect(database, row_factory=dict_row) as connection:
        fold_all(connection, moment(connection))
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    done = 0

    class Interrupted(psycopg.Cursor[Any]):
        def execute(self, *arguments: Any, **more: Any) -> Any:
            nonlocal done
            found = super().execute(*arguments, **more)
            done += 1
            if done == behind:
                priced(database, ("price", (*KEY, START), 2), ("account", ("bolt",), ("p1", "EUR", START)))
            return found

    with psycopg.connect(database, row_factory=dict_row) as connection:
        at = moment(connection)
        connection.rollback()
        with connection.transaction(), Interrupted(connection, row_factory=tuple_row) as cursor:
            fold_effective_prices(cursor, at)
        assert done >= OF_A_PLAN
        query = ContractQuery(moment(connection))
        assert rows_read(connection, query) == rows_defined(connection, query)
        assert len(rows_read(connection, query)) == 2
        connection.rollback()
        fold_all(connection, moment(connection))
        assert stored(connection) == defined(connection, moment(connection))


@pytest.mark.parametrize("behind", range(1, STATEMENTS + 1))
def test_a_price_that_is_committed_while_other_accounts_are_folded_is_never_missed(database: str, behind: int) -> None:
    """Its note names a plan: a fold that has spread such notes already must leave it."""
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    done = 0

    class Interrupted(psycopg.Cursor[Any]):
        def execute(self, *arguments: Any, **more: Any) -> Any:
            nonlocal done
            found = super().execute(*arguments, **more)
            done += 1
            if done == behind:
                priced(database, ("price", (*KEY, START), 2))
            return found

    with psycopg.connect(database, row_factory=dict_row) as connection:
        fold_all(connection, moment(connection))
        connection.commit()
        priced(database, ("account", ("bolt",), ("p2", "EUR", START)))
        at = moment(connection)
        connection.rollback()
        with connection.transaction(), Interrupted(connection, row_factory=tuple_row) as cursor:
            fold_effective_prices(cursor, at)
        assert done == STATEMENTS
        assert not contract_source(connection).is_stored
        assert [row["unit_price"] for row in contract_rows(connection, ContractQuery())] == [2]
        fold_all(connection, moment(connection))
        assert [row["unit_price"] for row in stored(connection)] == [2]


def moment(database: Catalog) -> datetime:
    found = database.execute("SELECT now() AS at").fetchone()
    assert found is not None
    at: datetime = found["at"]
    return at


@pytest.fixture
def ingestion(database: str) -> Iterator[Ownership]:
    owner = Ownership.take("ingestion", database, {})
    yield owner
    owner.close()


def test_a_driver_folds_what_was_committed_and_a_planned_price_when_its_instant_comes(
    database: str, ingestion: Ownership
) -> None:
    """Also deletions and moves, which have an end by their commit; nothing else is done to it."""
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock)

    def is_followed(connection: Catalog) -> bool:
        """Folds again and again, as a driver does, until the table is right."""
        for _ in range(10):
            clock.go(LOOK_SECONDS)
            prices.fold_if_due()
        with connection.transaction():
            return contract_source(connection).is_stored and stored(connection) == defined(
                connection, moment(connection)
            )

    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        soon = connection.execute("SELECT clock_timestamp() + interval '2 s' AS at").fetchone()
        assert soon is not None
        steps = [
            ("account", ("acme",), ("p1", "EUR", START)),
            ("account", ("bolt",), ("p2", "EUR", None)),
            *[("price", (plan, *KEY[1:], START), 1) for plan in PLANS],
            ("price", (*KEY, soon["at"]), 2),
            ("plan", ("p1",), "Plan One"),
            ("account", ("bolt",), ("p1", "EUR", None)),
            ("price", ("p2", *KEY[1:], START), None),
            ("account", ("bolt",), None),
        ]
        for step in steps:
            priced(database, step)
            assert connection.execute(NOTES.encode()).fetchall() != []
            assert is_followed(connection)
        seen = [row["unit_price"] for row in stored(connection)]
        while seen[-1] == 1:
            assert is_followed(connection)
            seen += [row["unit_price"] for row in stored(connection)]
            assert moment(connection) < soon["at"] + timedelta(seconds=30)
        assert seen[-1] == 2


def test_a_change_of_nothing_and_a_look_at_nothing_write_nothing(database: str, ingestion: Ownership) -> None:
    """Rows that stay as they are stay where they are."""
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock)
    places = "SELECT ctid, xmin::text FROM catalog.effective_prices_now"
    reached = "SELECT xmin::text FROM catalog.effective_prices_progress"
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(3):
            clock.go(LOOK_SECONDS)
            prices.fold_if_due()
        before, last = connection.execute(places).fetchall(), connection.execute(reached).fetchall()
        clock.go(LOOK_SECONDS)
        prices.fold_if_due()
        assert connection.execute(reached).fetchall() == last, "nothing was due"
        priced(database, ("price", (*KEY, START), 1))
        clock.go(LOOK_SECONDS)
        prices.fold_if_due()
        assert connection.execute(reached).fetchall() != last
        assert connection.execute(places).fetchall() == before != []


def test_a_table_that_cannot_be_folded_ends_no_driver_and_its_readers_read_the_view(
    database: str, ingestion: Ownership
) -> None:
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        refused = "ADD CONSTRAINT refused CHECK (model <> 'm1')"
        connection.execute(f"ALTER TABLE catalog.effective_prices_now {refused}".encode())
        with capture_logs() as logs:
            for _ in range(3):
                clock.go(LOOK_SECONDS)
                prices.fold_if_due()
        assert len(logs) == 1, "it is tried again a minute later"
        with connection.transaction():
            assert not contract_source(connection).is_stored
            assert [row["unit_price"] for row in contract_rows(connection, ContractQuery())] == [1]
        connection.execute("ALTER TABLE catalog.effective_prices_now DROP CONSTRAINT refused")
        clock.go(RETRY_SECONDS)
        prices.fold_if_due()
        with connection.transaction():
            assert contract_source(connection).is_stored
            assert [row["unit_price"] for row in contract_rows(connection, ContractQuery())] == [1]


MANY = 45
"""Accounts of the plan `p1`: less than a fold reads."""


def shared_by_many(database: str) -> None:
    """Everybody's prices are folded; `p1` has MANY accounts, and one price."""
    priced(database, ("price", (*KEY, START), 1))
    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency, effective_from)"
            " SELECT 'a' || n, '', 'p1', 'EUR', %s FROM generate_series(1, %s) AS n",
            [START, MANY],
        )
        fold_all(connection, moment(connection))


@pytest.mark.parametrize("noted", ["one price, three times", "everybody"])
def test_a_change_of_what_many_accounts_share_is_noted_for_them_in_pieces(database: str, noted: str) -> None:
    """However many they are: in one statement those of a plan of millions would take longer than a fold may."""
    shared_by_many(database)
    if noted == "everybody":
        with psycopg.connect(database) as connection:
            connection.execute("INSERT INTO catalog.effective_prices_due DEFAULT VALUES")
    else:
        for unit_price in (2, 3, 4):
            priced(database, ("price", (*KEY, START), unit_price))
    left = []
    with psycopg.connect(database, row_factory=dict_row) as connection:
        query = ContractQuery()
        while True:
            with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
                if not fold_effective_prices(cursor, moment(connection), notes=2, accounts_per_note=10):
                    break
            left.append([row["account"] for row in connection.execute(NOTES.encode()) if row["account"]])
            assert rows_read(connection, query) == rows_defined(connection, query)
            connection.commit()
        assert [len(accounts) for accounts in left[:3]] == [18, 36, 39], "20 of 45 more each time, and 2 are read"
        assert all(len(set(accounts)) == len(accounts) for accounts in left), "three changes are one note of each"
        assert stored(connection) == defined(connection, moment(connection)) != []


def test_a_plan_that_is_changed_again_and_again_is_noted_to_its_last_account(database: str) -> None:
    """A new change does not begin anew what is spread in part, and notes no account a second time."""
    shared_by_many(database)
    seen: set[str] = set()
    with psycopg.connect(database, row_factory=dict_row) as connection:
        for fold in range(1, 1 + 2 * MANY // 5):
            priced(database, ("price", (*KEY, START), 1 + fold))
            with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
                fold_effective_prices(cursor, moment(connection), notes=1, accounts_per_note=5)
            noted = [row["account"] for row in connection.execute(NOTES.encode()) if row["account"]]
            assert len(noted) == len(set(noted)), "or notes would grow for as long as the plan changes"
            seen |= {*noted}
            seen |= {row["account"] for row in stored(connection) if row["unit_price"] > 1}
            connection.commit()
            assert fold < MANY // 5 or len(seen) == MANY
        fold_all(connection, moment(connection))
        assert stored(connection) == defined(connection, moment(connection)) != []


def test_each_account_is_read_however_often_the_catalog_changes(database: str) -> None:
    """Also one whose price the clock changes. New notes are stored where those were that a fold has taken."""
    shared_by_many(database)
    priced(database, ("account", ("late",), ("p2", "EUR", START)), ("price", ("p2", *KEY[1:], START), 1))
    with psycopg.connect(database, row_factory=dict_row, autocommit=True) as connection:
        fold_all(connection, moment(connection))
        connection.execute("DELETE FROM catalog.effective_prices_now WHERE account = 'late'")
        connection.execute("INSERT INTO catalog.effective_prices_due (account, due_at) VALUES ('late', now())")
        for fold in range(2 * MANY // 5):
            priced(database, ("price", (*KEY, START), 2 + fold))
            with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
                fold_effective_prices(cursor, moment(connection), notes=5)
            connection.execute("VACUUM catalog.effective_prices_due")
        read = {row["account"] for row in stored(connection) if row["unit_price"] > 1 or row["account"] == "late"}
        assert len(read) == MANY + 1


def test_a_fold_that_takes_too_long_is_halved_until_it_is_done(database: str, ingestion: Ownership) -> None:
    """Else the same accounts would be tried again for ever."""
    shared_by_many(database)
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock, max_statement_seconds=0.4)
    with psycopg.connect(database, autocommit=True) as connection:
        slow = "ADD CONSTRAINT slow CHECK (pg_sleep(0.02) IS NOT NULL) NOT VALID"
        connection.execute(f"ALTER TABLE catalog.effective_prices_now {slow}".encode())
    priced(database, ("price", (*KEY, START), 2))
    with psycopg.connect(database, row_factory=dict_row) as connection, capture_logs() as logs:
        for _ in range(2 * MANY):
            clock.go(RETRY_SECONDS)
            prices.fold_if_due()
            with connection.transaction():
                if contract_source(connection).is_stored:
                    break
        assert {row["unit_price"] for row in stored(connection)} == {2}
    halved = [log["next_notes"] for log in logs if "next_notes" in log]
    assert halved[:1] == [NOTES_OF_A_FOLD // 2]


def test_folds_grow_again_while_changes_keep_coming(database: str, ingestion: Ownership) -> None:
    """A database that was slow once would otherwise be given small folds until nothing is due, which may be never."""
    shared_by_many(database)
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION took_too_long() RETURNS boolean LANGUAGE plpgsql AS $$"
            " BEGIN RAISE EXCEPTION 'as if it took too long' USING ERRCODE = 'query_canceled'; END $$"
        )
        connection.execute(
            "ALTER TABLE catalog.effective_prices_now ADD CONSTRAINT slow CHECK (took_too_long()) NOT VALID"
        )
        priced(database, ("price", (*KEY, START), 2))
        clock.go(RETRY_SECONDS)
        prices.fold_if_due()
        connection.execute("ALTER TABLE catalog.effective_prices_now DROP CONSTRAINT slow")
        connection.execute(
            "INSERT INTO catalog.effective_prices_due (account) SELECT 'x' || n FROM generate_series(1, 5000) AS n"
        )
        clock.go(RETRY_SECONDS)
        left = []
        for _ in range(FOLDS_BEFORE_MORE + 1):
            prices.fold_if_due()
            (noted,) = connection.execute("SELECT count(*) FROM catalog.effective_prices_due").fetchone() or (0,)
            left.append(noted)
    taken = [before - after for before, after in pairwise(left)]
    assert taken == [*[NOTES_OF_A_FOLD // 2] * (FOLDS_BEFORE_MORE - 1), NOTES_OF_A_FOLD]


@pytest.mark.parametrize("held", ["lock on prices", "lock on notes", "slow fold"])
def test_a_lock_on_the_catalog_or_a_slow_fold_holds_up_no_events(
    database: str, ingestion: Ownership, held: str
) -> None:
    """The driver would restart for a database that is away, fold first, and never read an event."""
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    clock = HandClock()
    prices = EffectivePrices(ingestion, clock)
    clock.go(LOOK_SECONDS)
    with psycopg.connect(database) as connection:
        if held == "slow fold":
            slow = "ADD CONSTRAINT slow CHECK (pg_sleep(60) IS NOT NULL)"
            connection.execute(f"ALTER TABLE catalog.effective_prices_now {slow}".encode())
            connection.commit()
        else:
            table = "prices" if held == "lock on prices" else "effective_prices_due"
            connection.execute(f"LOCK TABLE catalog.{table} IN ACCESS EXCLUSIVE MODE".encode())
        with capture_logs() as logs:
            for _ in range(3):
                prices.fold_if_due()
        assert len(logs) == 1, "it is tried again a minute later"
        connection.rollback()
        connection.execute("ALTER TABLE catalog.effective_prices_now DROP CONSTRAINT IF EXISTS slow")
    clock.go(RETRY_SECONDS)
    prices.fold_if_due()
    with psycopg.connect(database, row_factory=dict_row) as connection:
        assert contract_source(connection).is_stored
        assert [row["unit_price"] for row in stored(connection)] == [1]


@pytest.mark.parametrize(
    ("named", "seen"),
    [(None, []), ([], []), (["acme"], ["acme"]), (["acme", "bolt"], ["acme", "bolt"]), ("*", list(ACCOUNTS))],
)
def test_rows_of_an_account_are_seen_by_who_may_see_it_and_so_are_notes_about_it(
    database: str, named: list[str] | str | None, seen: list[str]
) -> None:
    """From the table and, while its plan's price is still to be folded, from the view."""
    plans = {"acme": "p1", "bolt": "p2", "globex": "p1"}
    edits = [("account", (account,), (plan, "EUR", START)) for account, plan in plans.items()]
    priced(database, *edits, *(("price", (plan, *KEY[1:], START), 1) for plan in PLANS))
    with psycopg.connect(database, row_factory=dict_row) as connection:
        fold_all(connection, moment(connection))
    with psycopg.connect(reader_url(database), row_factory=dict_row) as connection:
        if named is not None:
            connection.execute(
                "SELECT set_config('weir.accounts', %s, false)",
                [named if isinstance(named, str) else json.dumps(named)],
            )
        connection.commit()
        assert contract_source(connection).is_stored
        assert [row["account"] for row in contract_rows(connection, ContractQuery())] == seen
        assert [row["account"] for row in stored(connection)] == seen
        connection.rollback()
        priced(database, ("price", ("p1", *KEY[1:], START), 7))
        assert contract_source(connection).is_stored == (not {"acme", "globex"} & set(seen))
        found = {row["account"]: row["unit_price"] for row in contract_rows(connection, ContractQuery())}
        assert found == {account: 7 if plans[account] == "p1" else 1 for account in seen}
        assert {row["plan"] for row in connection.execute(NOTES.encode())} <= {plans[account] for account in seen}


def test_an_upgrade_has_everybody_folded_and_until_then_readers_read_the_view(database: str) -> None:
    """In steps, by the driver of the new release: the migration reads no price."""
    with migrator(database) as config:
        command.downgrade(config, "0118")
    priced(
        database, *(("account", (account,), ("p1", "EUR", START)) for account in ACCOUNTS), ("price", (*KEY, START), 1)
    )
    migrate(database)
    with psycopg.connect(database, row_factory=dict_row) as connection:
        assert stored(connection) == []
        assert [row["account"] for row in contract_rows(connection, ContractQuery())] == list(ACCOUNTS)
        connection.rollback()
        fold_all(connection, moment(connection), notes=1)
        assert contract_source(connection).is_stored
        assert stored(connection) == defined(connection, moment(connection)) != []


def test_a_renamed_column_of_the_catalog_has_everybody_folded(database: str) -> None:
    """People may rename columns of what they edit; the view goes on, and so does the table."""
    priced(database, ("account", ("acme",), ("p1", "EUR", START)), ("price", (*KEY, START), 1))
    with psycopg.connect(database, row_factory=dict_row) as connection:
        fold_all(connection, moment(connection))
        connection.execute("ALTER TABLE catalog.plans RENAME COLUMN plan TO tariff")
        connection.execute("UPDATE catalog.plans SET name = 'x'")
        assert connection.execute(NOTES.encode()).fetchall() == [{"account": "", "plan": ""}]
        fold_all(connection, moment(connection))
        assert [row["plan_name"] for row in stored(connection)] == ["x"]


def test_one_account_is_found_by_index(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO catalog.effective_prices_now (account, account_name, plan, plan_name, currency, model, meter,"
            " effective_from, account_from) SELECT 'a' || n, '', 'p', '', 'EUR', 'm', 'requests', now(), now()"
            " FROM generate_series(1, 20000) AS n; ANALYZE"
        )
        asked = "SELECT * FROM catalog.effective_prices_now WHERE account = 'a7'"
        text = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {asked}".encode()).fetchall())
        assert "Seq Scan" not in text, text
