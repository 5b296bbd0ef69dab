"""A migration beside drivers that run: it takes locks in its own order, and they in theirs."""

from __future__ import annotations

import threading

import psycopg
from alembic import command

from jobs.runtime.postgres.schema import migrate, migrator, schema_is_current
from tests.waiting import wait_until

BEFORE_INDEXES = "0126"
_IS_WAITING = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE NOT granted AND relation = 'stragglers'::regclass AND mode = 'ShareLock'
)
"""


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
