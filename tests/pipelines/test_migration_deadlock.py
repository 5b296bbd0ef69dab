"""A migration beside drivers that run: it takes locks in its own order, and they in theirs."""

from __future__ import annotations

import threading

import psycopg
import pytest
from alembic import command
from sqlalchemy.exc import OperationalError

from jobs.runtime.postgres.schema import migrate, migrator, schema_is_current
from tests.waiting import wait_until

BEFORE_INDEXES = "0126"
_IS_WAITING = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE NOT granted AND relation = 'stragglers'::regclass AND mode = 'ShareLock'
)
"""


def test_a_migration_lets_others_pass_while_a_table_is_not_free_and_ends_when_it_is(database: str) -> None:
    with migrator(database) as config:
        command.downgrade(config, BEFORE_INDEXES)
    with psycopg.connect(database) as driver, psycopg.connect(database, autocommit=True) as other:
        driver.execute("LOCK TABLE stragglers IN ROW EXCLUSIVE MODE")
        migrating = threading.Thread(target=migrate, args=[database], kwargs={"lock_timeout": "500ms"})
        migrating.start()
        wait_until(lambda: other.execute(_IS_WAITING).fetchone() == (True,), "the migration waiting", 60)
        # It waits behind the migration for the same table, and gets it though the first driver still has it.
        other.execute("SET lock_timeout = '30s'")
        other.execute("UPDATE stragglers SET reason = reason")
        assert migrating.is_alive()
        driver.commit()
    migrating.join(60)
    assert not migrating.is_alive()
    assert schema_is_current(database)


def test_a_migration_gives_up_after_its_attempts_and_leaves_the_schema_as_it_was(database: str) -> None:
    with migrator(database) as config:
        command.downgrade(config, BEFORE_INDEXES)
    with psycopg.connect(database) as driver:
        driver.execute("LOCK TABLE stragglers IN ROW EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            migrate(database, lock_timeout="10ms", pause_seconds=0.0)
        row = driver.execute("SELECT version_num FROM alembic_version").fetchone()
        assert row == (BEFORE_INDEXES,)


def test_a_migration_that_deadlocks_with_a_driver_begins_again_and_ends(database: str) -> None:
    """The driver has a straggler and then changes a threshold; the migration makes indexes of both the other way."""
    with migrator(database) as config:
        command.downgrade(config, BEFORE_INDEXES)
    with psycopg.connect(database) as driver, psycopg.connect(database, autocommit=True) as looking:
        # Only the migration's session looks for deadlocks, so it is the one that is ended.
        driver.execute("SET LOCAL deadlock_timeout = '1h'")
        driver.execute("LOCK TABLE stragglers IN ROW EXCLUSIVE MODE")
        migrating = threading.Thread(target=migrate, args=[database])
        migrating.start()
        wait_until(lambda: looking.execute(_IS_WAITING).fetchone() == (True,), "the migration waiting", 60)
        driver.execute("LOCK TABLE threshold_changes IN ROW EXCLUSIVE MODE")
        driver.commit()
    migrating.join(60)
    assert not migrating.is_alive()
    assert schema_is_current(database)
