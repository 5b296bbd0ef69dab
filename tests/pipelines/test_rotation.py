"""Rotation of the database's password without a pause, as docs/how-to/rotate-secrets.md says: by a second role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.downgrade import OLDEST, downgrade
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate, schema_is_current

PAGE = Path(__file__).parents[2] / "docs/how-to/rotate-secrets.md"
WRITE = """
INSERT INTO positions (job, input, next_position, frontier) VALUES ('billing', 'usage', %s, %s)
ON CONFLICT (job, input) DO UPDATE SET next_position = excluded.next_position
"""


@pytest.fixture
def second(database: str) -> Iterator[str]:
    """The database's address for the second role that the page makes."""
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(statements)
        yield in_schema(make_conninfo(database, user="weir_b", password="…"))
        owner.execute("REVOKE pg_signal_backend FROM weir; DROP ROLE weir_b")


@pytest.fixture
def first(database: str, second: str) -> Iterator[str]:
    """That of a role that is no superuser, as the owner here is."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE ROLE weir_a LOGIN PASSWORD '…' IN ROLE weir")
        yield in_schema(make_conninfo(database, user="weir_a", password="…"))
        owner.execute("DROP ROLE weir_a")


def test_a_driver_with_the_second_role_takes_over_from_one_with_the_first_and_loses_nothing(
    first: str, second: str
) -> None:
    at = datetime(2026, 11, 28, tzinfo=UTC)
    before = Ownership.take("billing", first, {})
    with before.transaction() as cursor:
        cursor.execute(WRITE, [7, at])
    assert schema_is_current(second)
    after = Ownership.take("billing", second, {})
    after.resume()
    with after.transaction() as cursor:
        position = cursor.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone()
        assert position == (7,)
        cursor.execute(WRITE, [8, at])
    with pytest.raises(Fenced), before.transaction() as cursor:
        cursor.execute(WRITE, [99, at])
    # And back, when the first has its new password.
    again = Ownership.take("billing", first, {})
    with again.transaction() as cursor:
        assert cursor.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone() == (8,)
    for owned in (before, after, again):
        owned.close()


def test_either_role_may_migrate_after_the_other_and_what_a_migration_makes_again_stays_the_owners(
    database: str, first: str, second: str
) -> None:
    for url in (second, first, second):
        migrate(url)
    with psycopg.connect(database) as connection:
        owner = connection.execute(
            "SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'refusal_of_release'"
        ).fetchall()
    assert owner == [("weir",)]


def test_the_dashboards_role_gets_its_next_password_by_a_migration_and_whoever_reads_goes_on(database: str) -> None:
    migrate(database, "the first")
    reader = make_conninfo(database, user=ROLE)
    with psycopg.connect(reader, password="the first", autocommit=True) as before:
        migrate(database, "the second")
        assert before.execute("SELECT count(*) FROM weir.usage_windows").fetchone() == (0,)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(reader, password="the first")
        with psycopg.connect(reader, password="the second") as after:
            assert after.execute("SELECT count(*) FROM weir.usage_windows").fetchone() == (0,)
        # A migration without a password leaves it as it is.
        migrate(database)
        psycopg.connect(reader, password="the second").close()


def test_a_driver_that_runs_outlives_a_new_password_of_its_role(database: str, second: str) -> None:
    owned = Ownership.take("billing", second, {})
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("ALTER ROLE weir_b PASSWORD 'another'")
    with owned.transaction() as cursor:
        cursor.execute(WRITE, [9, datetime(2026, 11, 28, tzinfo=UTC)])
    with psycopg.connect(database) as reader:
        assert reader.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone() == (9,)
    owned.close()


@pytest.fixture
def of_billing(database: str) -> Iterator[tuple[str, str]]:
    """The database's address for two members of billing's role, as docs/how-to/database-roles.md has them."""
    names = ("billing_a", "billing_b")
    with psycopg.connect(database, autocommit=True) as owner:
        for name in names:
            owner.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD '…' IN ROLE weir_billing").format(sql.Identifier(name))
            )
        one, other = (in_schema(make_conninfo(database, user=name, password="…")) for name in names)
        yield one, other
        owner.execute("DROP ROLE billing_a, billing_b")


def test_a_driver_whose_login_may_not_end_its_predecessors_session_waits_for_its_transaction_and_fences_it(
    of_billing: tuple[str, str],
) -> None:
    at = datetime(2026, 11, 28, tzinfo=UTC)
    before = Ownership.take("billing", of_billing[0], {})
    with ThreadPoolExecutor() as pool:
        with before.transaction() as cursor:
            cursor.execute(WRITE, [7, at])
            taken = pool.submit(Ownership.take, "billing", of_billing[1], {})
            with pytest.raises(TimeoutError):
                taken.result(timeout=0.5)
        after = taken.result(timeout=30)
    with after.transaction() as cursor:
        assert cursor.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone() == (7,)
    with pytest.raises(Fenced, match="epoch 1 was followed by 2"), before.transaction() as cursor:
        cursor.execute(WRITE, [99, at])
    for owned in (before, after):
        owned.close()


def test_a_driver_whose_login_may_signal_ends_its_predecessors_session_though_it_sees_little_of_it(
    database: str, of_billing: tuple[str, str]
) -> None:
    """Else a predecessor that is frozen while it copies rows would hold up its successor for ever."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("GRANT pg_signal_backend TO weir_billing")
        try:
            before = Ownership.take("billing", of_billing[0], {})
            after = Ownership.take("billing", of_billing[1], {})
            with pytest.raises(psycopg.errors.AdminShutdown):
                before.connection.execute("SELECT 1")
            after.close()
        finally:
            owner.execute("REVOKE pg_signal_backend FROM weir_billing")


def test_a_rebuild_by_a_login_that_may_not_end_the_drivers_session_says_what_to_do(
    database: str, first: str, of_billing: tuple[str, str]
) -> None:
    driver = Ownership.take("billing", of_billing[0], {})
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("REVOKE pg_signal_backend FROM weir")
        with pytest.raises(Refused, match="stop billing, or GRANT pg_signal_backend"):
            Ownership.take("billing", first, {}, is_alone=True)
        owner.execute("GRANT pg_signal_backend TO weir")
    rebuild = Ownership.take("billing", first, {}, is_alone=True)
    with pytest.raises(psycopg.errors.AdminShutdown):
        driver.connection.execute("SELECT 1")
    rebuild.close()


def test_a_downgrade_sees_that_an_application_runs_whatever_its_login(first: str, of_billing: tuple[str, str]) -> None:
    driver = Ownership.take("billing", of_billing[0], {})
    with pytest.raises(Refused, match=re.escape("stop the applications first (billing runs)")):
        downgrade(first, OLDEST)
    driver.close()
