"""What was deleted and never told is counted by joins, and nothing that is still on its way; a real database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from jobs.joins.unpropagated_deletions import CLOCKS_DIFFER, LOOK_SECONDS, UnpropagatedDeletions
from jobs.streams import SCHEMAS, Table
from tests.clocks import HandClock

JANUARY = datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)
LONG = timedelta(hours=1)
CAPTURE = """
    CREATE SCHEMA seen;
    CREATE TABLE seen.capture (captured_until timestamptz);
    INSERT INTO seen.capture VALUES (now() - interval '1 hour');
    CREATE OR REPLACE VIEW catalog.capture AS
        SELECT true AS is_active, captured_until, captured_until AS first_beat_at, '{}'::text[] AS missing_columns
        FROM seen.capture;
    -- A row from before the constraint stays.
    ALTER TABLE catalog.prices DROP CONSTRAINT prices_effective_from_is_a_date;
"""
"""Whoever captures, in the hands of a test."""


class Looking:
    """joins' looks at a database: `look` is the next one, with F as far as all that is committed now, or not."""

    def __init__(self, url: str) -> None:
        self._clock = HandClock()
        self.deletions = UnpropagatedDeletions(url, self._clock)
        self.database = psycopg.connect(url, autocommit=True)
        self.database.execute(CAPTURE)
        self.held = {
            Table.ACCOUNTS: version(Table.ACCOUNTS, 1, account="a", plan="p", currency="EUR"),
            Table.PRICES: version(Table.PRICES, 2, plan="p", model="m", meter="requests", currency="EUR", unit_price=1),
        }
        self.put()

    def put(self) -> None:
        """What joins has, as the database has it."""
        self.database.execute("INSERT INTO catalog.plans VALUES ('p', 'P') ON CONFLICT DO NOTHING")
        self.database.execute("INSERT INTO catalog.accounts VALUES ('a', 'A', 'p', 'EUR', 'UTC', %s)", [JANUARY])
        price = "INSERT INTO catalog.prices VALUES ('p', 'm', 'requests', 'EUR', %s, 1)"
        self.database.execute(price, [JANUARY])
        # That nobody could tell joins of, which has no room for it.
        self.database.execute(price + " ON CONFLICT DO NOTHING", ["infinity"])

    def delete(self) -> None:
        self.database.execute("DELETE FROM catalog.accounts; DELETE FROM catalog.prices")

    def captured(self) -> None:
        """Kafka has whatever is committed now."""
        self.database.execute("UPDATE seen.capture SET captured_until = clock_timestamp()")

    def looks(self, times: int, frontier: timedelta | None = LONG) -> int:
        """So many looks, F so far ahead of now; how many rows are said to be gone."""
        for _ in range(times):
            self._clock.go(LOOK_SECONDS)
            now = datetime.now(UTC)
            self.deletions.look_if_due(self.held, None if frontier is None else now + frontier)
        return self.deletions.rows


def version(table: Table, lsn: int, *, deleted: bool = False, **said: Any) -> pa.Table:
    row = {"lsn": lsn, "effective_from": JANUARY, "deleted": deleted, **said}
    return pa.Table.from_pylist([row], schema=SCHEMAS[table])


@pytest.fixture
def looking(database: str) -> Looking:
    return Looking(database)


def test_what_is_there_is_not_counted(looking: Looking) -> None:
    looking.captured()
    assert looking.looks(4) == 0


def test_a_deletion_that_may_still_come_is_not_counted(looking: Looking) -> None:
    looking.delete()
    assert looking.looks(4) == 0, "Kafka does not have what was committed then"
    looking.captured()
    assert looking.looks(4, frontier=None) == 0, "joins has read nothing"
    assert looking.looks(4, frontier=CLOCKS_DIFFER - timedelta(seconds=1)) == 0, "joins may not have read it yet"


def test_unpropagated_deletions_are_counted_until_published_or_undone(looking: Looking) -> None:
    looking.delete()
    assert looking.looks(1) == 0
    looking.captured()
    assert looking.looks(2) == 2
    looking.put()
    assert looking.looks(1) == 0
    looking.delete()
    assert looking.looks(1) == 0, "this deletion is another one, and on its way"
    looking.captured()
    assert looking.looks(2) == 2
    gone = version(Table.ACCOUNTS, 3, account="a", deleted=True)
    looking.held[Table.ACCOUNTS] = pa.concat_tables([looking.held[Table.ACCOUNTS], gone])
    assert looking.looks(1) == 1, "reconcile has deleted the account once more, and joins was told"


def test_a_recreated_row_of_the_same_key_is_another_row(looking: Looking) -> None:
    looking.delete()
    looking.looks(1)
    looking.captured()
    assert looking.looks(2) == 2
    again = version(Table.PRICES, 4, plan="p", model="m", meter="requests", currency="EUR", unit_price=2)
    looking.held[Table.PRICES] = pa.concat_tables([looking.held[Table.PRICES], again])
    assert looking.looks(1) == 1, "of the price that joins was told anew the deletion may be on its way"


def test_an_unavailable_or_locked_database_delays_nothing(looking: Looking) -> None:
    looking.delete()
    looking.looks(1)
    looking.captured()
    assert looking.looks(2) == 2
    with psycopg.connect(looking.database.info.dsn, password=looking.database.info.password) as other:
        other.execute("LOCK TABLE catalog.prices IN ACCESS EXCLUSIVE MODE")
        assert looking.looks(1) == 2, "what is not known is left as it was"
