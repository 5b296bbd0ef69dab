"""Rotation of the database's password without a pause, as docs/how-to/rotate-secrets.md says: by a second role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobs.runtime.errors import Fenced
from jobs.runtime.postgres.address import in_schema
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
