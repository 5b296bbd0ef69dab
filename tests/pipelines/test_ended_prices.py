"""What is kept of a price that was deleted: one end, the last, whoever deletes it and puts it there again, and how."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from alembic import command

from jobs.runtime.postgres.schema import migrate, migrator
from tests.dashboard.reader import reader_url

START = datetime(2026, 3, 1, tzinfo=UTC)
_PUT = "INSERT INTO catalog.prices VALUES ('p', 'm', 'requests', 'EUR', %s, %s)"
_DELETE = "DELETE FROM catalog.prices"


@pytest.fixture
def priced(database: str) -> str:
    """A catalog of one account and one price, 1."""
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans VALUES ('p', 'p')")
        connection.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency, effective_from)"
            " VALUES ('acme', '', 'p', 'EUR', %s)",
            [START],
        )
        connection.execute(_PUT, [START, 1])
    return database


def kept(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What has ended, and what is still there."""
    return connection.execute(
        "SELECT 'ended', unit_price FROM catalog.ended_prices UNION ALL SELECT 'there', unit_price FROM catalog.prices"
    ).fetchall()


def ends(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT ended_at FROM catalog.ended_prices").fetchall()


def clock(connection: psycopg.Connection[Any]) -> datetime:
    [now] = connection.execute("SELECT clock_timestamp()").fetchone() or [None]
    assert isinstance(now, datetime)
    return now


def test_a_price_deleted_twice_in_one_transaction_has_one_end(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        connection.execute(_DELETE)
        connection.execute(_PUT, [START, 2])
        assert kept(connection) == [("there", 2)]
        connection.execute(_DELETE)
        assert kept(connection) == [("ended", 2)]
        connection.execute(_PUT, [START, 3])
        connection.execute(f"WITH gone AS ({_DELETE} RETURNING *) INSERT INTO catalog.prices SELECT * FROM gone")
        connection.commit()
        assert kept(connection) == [("there", 3)]


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_price_that_ended_meanwhile_cannot_be_restored_by_a_stale_reader(
    priced: str, level: psycopg.IsolationLevel
) -> None:
    """Else it would be there and have ended, and could never be deleted any more."""
    with psycopg.connect(priced) as old, psycopg.connect(priced) as other:
        old.isolation_level = level
        old.execute("SELECT FROM catalog.plans")
        other.execute(_DELETE)
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            old.execute(_PUT, [START, 2])
        old.rollback()
        for unit_price in (2, 3):
            old.execute(_PUT, [START, unit_price])
            old.commit()
            assert kept(old) == [("there", unit_price)]
            old.execute(_DELETE)
            old.commit()
            assert kept(old) == [("ended", unit_price)]


def test_a_price_ends_when_its_deletion_is_committed(priced: str) -> None:
    """As the log of changes tells joins, however long the transaction was open."""
    with psycopg.connect(priced) as connection:
        connection.execute(_DELETE)
        before = clock(connection)
        connection.commit()
        assert before < ends(connection)[0][0] < clock(connection)


def test_a_price_that_began_before_its_deletion_committed_was_effective(
    priced: str,
) -> None:
    with psycopg.connect(priced) as connection:
        soon = connection.execute("SELECT now() + interval '0.2 s' AS soon").fetchone()
        assert soon is not None
        with psycopg.connect(priced) as other:
            other.execute(_PUT, [soon[0], 3])
        connection.execute(f"{_DELETE} WHERE unit_price = 3")
        connection.execute("SELECT pg_sleep(0.3)")
        connection.commit()
        assert kept(connection) == [("ended", 3), ("there", 1)]
        assert connection.execute("SELECT unit_price FROM catalog.effective_prices").fetchall() == []


def test_an_explicit_end_wins_over_the_transaction_time(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        connection.execute(_DELETE)
        connection.execute(_PUT, [START, 2])
        said = START + timedelta(days=1)
        connection.execute("UPDATE catalog.prices SET deleted_at = %s", [said])
        connection.execute(_DELETE)
        connection.commit()
        assert ends(connection) == [(said,)]


def test_a_renamed_price_ended_at_the_commit_of_the_renaming(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        connection.execute("UPDATE catalog.prices SET model = 'n'")
        before = clock(connection)
        connection.commit()
        assert before < ends(connection)[0][0]
        connection.execute("UPDATE catalog.prices SET plan = plan, unit_price = 2")
        connection.commit()
        assert sorted(kept(connection)) == [("ended", 1), ("there", 2)]


def test_current_and_ended_prices_survive_the_upgrade(priced: str) -> None:
    """The release before left it so, and its deletion was refused."""
    with migrator(priced) as config:
        command.downgrade(config, "0033")
    with psycopg.connect(priced) as connection:
        connection.execute(
            "INSERT INTO catalog.ended_prices SELECT plan, model, meter, currency, effective_from, 5, now(), now()"
            " FROM catalog.prices"
        )
    migrate(priced)
    with psycopg.connect(priced) as connection:
        assert kept(connection) == [("there", 1)]
        connection.execute(_DELETE)
        connection.commit()
        assert kept(connection) == [("ended", 1)]


@pytest.mark.parametrize(("named", "seen"), [(None, []), ("[]", []), ('["acme"]', ["p"]), ("*", ["other", "p"])])
def test_ended_prices_have_the_visibility_of_their_plan(priced: str, named: str | None, seen: list[str]) -> None:
    """And nobody but the owner writes there."""
    with psycopg.connect(priced) as connection:
        connection.execute("INSERT INTO catalog.plans VALUES ('other', '')")
        connection.execute(_PUT.replace("'p'", "'other'"), [START, 2])
    with psycopg.connect(reader_url(priced)) as reader:
        reader.execute("SELECT set_config('weir.accounts', %s, true)", [named or ""])
        there = reader.execute("SELECT plan FROM catalog.prices ORDER BY 1").fetchall()
        with psycopg.connect(priced) as connection:
            connection.execute(_DELETE)
        ended = reader.execute("SELECT plan FROM catalog.ended_prices ORDER BY 1").fetchall()
        assert [plan for (plan,) in there] == [plan for (plan,) in ended] == seen
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("DELETE FROM catalog.ended_prices")
