"""Row-level security by itself: what the read-only role sees and may do, on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

import psycopg
import pytest

from dashboard.backend import Backend
from dashboard.queries.accounts import MAX_ACCOUNTS, read_accounts
from dashboard.settings import Settings
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate
from tests.dashboard.reader import reader_url
from tests.database_rows import window, write
from tests.waiting import wait_until

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def reader(database: str) -> str:
    write(database, "usage_windows", window(NOON, account="acme"), window(NOON, account="globex"))
    write(database, "catalog.plans", {"plan": "small", "name": "Small"}, {"plan": "large", "name": "Large"})
    for account, plan in (("acme", "small"), ("globex", "large")):
        write(database, "catalog.accounts", {"account": account, "name": account, "plan": plan, "currency": "EUR"})
        price = {"plan": plan, "model": "m", "meter": "requests", "currency": "EUR", "effective_from": NOON}
        write(database, "catalog.prices", {**price, "unit_price": 1})
    return reader_url(database)


def seen(url: str, setting: str | None, question: str = "SELECT account FROM usage_windows ORDER BY 1") -> list[str]:
    with psycopg.connect(url) as connection:
        if setting is not None:
            connection.execute("SELECT set_config('weir.accounts', %s, true)", [setting])
        return [value for (value,) in connection.execute(question).fetchall()]


@pytest.mark.parametrize(
    ("setting", "accounts"),
    [
        (None, []),
        ("", []),
        ("[]", []),
        ("*", ["acme", "globex"]),
        ('["acme"]', ["acme"]),
        ('["acme","globex"]', ["acme", "globex"]),
        ('["acme,globex"]', []),
        ('["*"]', []),
    ],
)
def test_only_named_accounts_are_seen_and_none_when_nothing_is_named(
    reader: str, setting: str | None, accounts: list[str]
) -> None:
    assert seen(reader, setting) == accounts


def test_a_setting_that_is_no_list_is_refused(reader: str) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        seen(reader, "acme")


def test_the_setting_ends_with_its_transaction(reader: str) -> None:
    with psycopg.connect(reader, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("SELECT set_config('weir.accounts', '*', true)")
        assert connection.execute("SELECT count(*) FROM usage_windows").fetchone() == (0,)


def test_plans_and_prices_are_seen_by_the_accounts_that_have_them(reader: str) -> None:
    assert seen(reader, '["acme"]', "SELECT plan FROM catalog.prices") == ["small"]
    assert seen(reader, '["acme"]', "SELECT plan FROM catalog.plans") == ["small"]
    assert len(seen(reader, '["acme"]', "SELECT changed_by FROM catalog.prices")) == 1
    assert seen(reader, "*", "SELECT plan FROM catalog.prices ORDER BY 1") == ["large", "small"]


@pytest.fixture
def bound(database: str, reader: str) -> Iterator[str]:
    """The address of a login that is bound to acme and to an account that is not there."""
    with psycopg.connect(database) as owner:
        owner.execute(f"CREATE ROLE acme_reader LOGIN PASSWORD 'acme' IN ROLE {ROLE}")
        owner.execute("INSERT INTO reader_logins VALUES ('acme_reader', '[\"acme\", \"initech\"]')")
    place = urlsplit(reader)
    yield in_schema(place._replace(netloc=f"acme_reader:acme@{place.hostname}:{place.port}").geturl())
    with psycopg.connect(database, autocommit=True) as owner:
        # A session that ends removes its temporary tables last.
        sessions = "SELECT FROM pg_stat_activity WHERE usename = 'acme_reader'"
        wait_until(lambda: not owner.execute(sessions).fetchall(), "the sessions of the login ending")
        owner.execute("DROP ROLE acme_reader")


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize(
    ("setting", "accounts"),
    [
        (None, []),
        ("", []),
        ("[]", []),
        ("*", ["acme"]),
        ('["*"]', []),
        ('["acme"]', ["acme"]),
        ('["globex"]', []),
        ('["acme","globex"]', ["acme"]),
    ],
)
def test_a_bound_login_sees_its_accounts_alone_whatever_it_sets(
    bound: str, setting: str | None, accounts: list[str]
) -> None:
    assert seen(bound, setting) == accounts
    assert seen(bound, setting, "SELECT plan FROM catalog.prices ORDER BY 1") == ["small" for _ in accounts]


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize(
    "attempt",
    [
        f"SET ROLE {ROLE}",
        f"SET SESSION AUTHORIZATION {ROLE}",
        "DELETE FROM weir.reader_logins",
        "UPDATE weir.reader_logins SET accounts = '[\"globex\"]'",
        "SELECT * FROM weir.reader_logins",
        "CREATE OR REPLACE FUNCTION weir.seen_accounts() RETURNS text LANGUAGE sql AS $$SELECT '*'$$",
        "CREATE FUNCTION pg_temp.seen_accounts() RETURNS text LANGUAGE sql AS $$SELECT '*'$$",
        "CREATE TEMP TABLE reader_logins (login text, accounts jsonb)",
        "SET search_path = pg_temp, weir",
        "ALTER ROLE acme_reader SET weir.accounts = '*'",
        "ALTER ROLE acme_reader RENAME TO other_reader",
    ],
)
def test_a_bound_login_frees_itself_by_no_statement(bound: str, attempt: str) -> None:
    with psycopg.connect(bound, autocommit=True) as connection:
        with suppress(psycopg.Error):
            connection.execute(attempt.encode())
        with connection.transaction():
            connection.execute("SELECT set_config('weir.accounts', '*', true)")
            assert connection.execute("SELECT DISTINCT account FROM weir.usage_windows").fetchall() == [("acme",)]


def test_a_bound_login_sees_nothing_that_is_of_all_accounts(bound: str, reader: str, database: str) -> None:
    write(
        database,
        "unknown_types",
        {"type": "theirs", "events": 1, "first_seen_at": NOON, "last_seen_at": NOON, "last_source": "s"},
    )
    assert seen(reader, "*", "SELECT type FROM unknown_types") == ["theirs"]
    assert [seen(bound, setting, "SELECT type FROM unknown_types") for setting in (None, "*", '["globex"]')] == [[]] * 3


def test_a_bound_login_neither_sees_nor_ends_the_sessions_of_a_dashboard_that_has_a_login_of_its_own(
    bound: str, reader: str, database: str
) -> None:
    """Of the role that it is a member of it may both, as in any Postgres."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE own_dashboard LOGIN PASSWORD 'own' IN ROLE {ROLE}")
    place = urlsplit(reader)
    own = place._replace(netloc=f"own_dashboard:own@{place.hostname}:{place.port}").geturl()
    asks = "SELECT query, pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s"
    with (
        psycopg.connect(bound, autocommit=True) as customer,
        psycopg.connect(own, autocommit=True) as dashboard,
        psycopg.connect(reader, autocommit=True) as of_the_role,
    ):
        assert customer.execute(asks, [of_the_role.info.backend_pid]).fetchone() == ("", True)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            customer.execute(asks, [dashboard.info.backend_pid])
        dashboard.execute("SELECT 'globex'")
        seen_of_it = "SELECT query FROM pg_stat_activity WHERE pid = %s"
        assert customer.execute(seen_of_it, [dashboard.info.backend_pid]).fetchone() == ("<insufficient privilege>",)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("DROP ROLE own_dashboard")


def test_every_policy_asks_what_a_bound_login_may_see(database: str) -> None:
    with psycopg.connect(database) as connection:
        policies = connection.execute("SELECT tablename, concat(qual, with_check) FROM pg_policies").fetchall()
        functions = connection.execute("SELECT proname, prosrc FROM pg_proc").fetchall()
    assert len([table for table, text in policies if "seen_accounts()" in text]) > 40
    assert [table for table, text in policies if "weir.accounts" in text] == []
    assert [name for name, text in functions if "weir.accounts" in text] == ["seen_accounts"]


def test_a_bound_login_sees_no_value_that_a_limit_of_another_account_names(
    bound: str, reader: str, database: str
) -> None:
    write(database, "limited_dimensions", {"meter": "requests", "dimension": "customer", "value": "of globex"})
    question = "SELECT value FROM limited_dimensions"
    assert seen(reader, "*", question) == ["of globex"]
    assert [seen(url, setting, question) for url, setting in ((bound, "*"), (reader, '["acme"]'))] == [[], []]


def test_a_name_that_no_role_has_is_bound_to_nothing(bound: str, database: str) -> None:
    """The role that was meant would see all accounts."""
    with psycopg.connect(database, autocommit=True) as owner:
        for statement in (
            "INSERT INTO reader_logins VALUES ('Acme_Reader', '[\"acme\"]')",
            "UPDATE reader_logins SET login = 'acme_raeder'",
        ):
            with pytest.raises(psycopg.errors.UndefinedObject, match="there is no role"):
                owner.execute(statement.encode())
    assert seen(bound, "*") == ["acme"]


def test_every_reader_may_ask_what_it_sees_whatever_the_database_grants_by_default(database: str) -> None:
    granted = "SELECT FROM pg_proc, aclexplode(proacl) WHERE proname = 'seen_accounts' AND grantee = 0"
    with psycopg.connect(database) as owner:
        assert len(owner.execute(granted).fetchall()) == 1, "said, not left to ALTER DEFAULT PRIVILEGES"


@pytest.mark.usefixtures("bound")
def test_who_is_bound_to_what_is_logged(database: str) -> None:
    newest = "SELECT document::jsonb FROM activity_log ORDER BY number DESC LIMIT 2"
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM reader_logins")
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        (removed,), (added,) = connection.execute(newest).fetchall()
    assert (removed["action"], added["action"]) == ("delete", "insert")
    assert removed["before"] == added["after"] == {"login": "acme_reader", "accounts": ["acme", "initech"]}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM usage_windows",
        "UPDATE jobs SET state = 'stopped'",
        "INSERT INTO catalog.plans VALUES ('p', 'P')",
        "TRUNCATE sessions",
        "CREATE TABLE mine (n int)",
        "ALTER TABLE usage_windows DISABLE ROW LEVEL SECURITY",
        "DROP POLICY reads_named_accounts ON usage_windows",
    ],
)
def test_the_role_can_only_read(reader: str, statement: str) -> None:
    with psycopg.connect(reader) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_the_owner_is_not_held_by_the_policies(database: str, reader: str) -> None:
    assert seen(database, None) == ["acme", "globex"]


def test_every_table_that_names_an_account_is_guarded(database: str) -> None:
    with psycopg.connect(database) as connection:
        unguarded = connection.execute(
            """
            SELECT attrelid::regclass::text FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            WHERE attname IN ('account', 'plan') AND relkind IN ('r', 'p', 'm') AND NOT relrowsecurity
              AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
            """
        ).fetchall()
    assert unguarded == []


def test_each_migration_lets_the_role_read_every_table_of_weir_and_no_other(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"REVOKE SELECT ON meters FROM {ROLE}")
        connection.execute("INSERT INTO meters (meter, unit, is_declared) VALUES ('calls', 'calls', true)")
        connection.execute("CREATE TABLE theirs AS SELECT 'x' AS word")
    url = reader_url(database)
    assert seen(url, None, "SELECT meter FROM meters WHERE meter = 'calls'") == ["calls"]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        seen(url, None, "SELECT word FROM theirs")


def test_migrating_again_changes_nothing_and_needs_no_password(database: str) -> None:
    url = reader_url(database)
    migrate(database)
    assert seen(url, "*") == []


def test_accounts_beyond_the_first_thousand_are_found_by_how_they_begin(database: str) -> None:
    names = [f"acct-{number:04}" for number in range(MAX_ACCOUNTS + 50)]
    write(database, "catalog.plans", {"plan": "small", "name": "Small"})
    contract = {"plan": "small", "currency": "EUR"}
    write(database, "catalog.accounts", *[{"account": name, "name": name, **contract} for name in names[::2]])
    write(
        database, "usage_windows", *[window(NOON, account=name) for name in names[1::2]], window(NOON, account="zeta")
    )
    backend = Backend(Settings.of({"WEIR_POSTGRES_URL": database}))
    first = read_accounts(backend)
    assert (first.names, first.is_cut) == (tuple(names[:MAX_ACCOUNTS]), True)
    assert read_accounts(backend, "acct-104").names == tuple(f"acct-104{digit}" for digit in range(10))
    assert read_accounts(backend, "z").names == ("zeta",)
    assert read_accounts(backend, "nobody") == read_accounts(backend, "acct-2")
