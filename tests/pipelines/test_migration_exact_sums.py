"""A database of the version before: every quantity and amount stays, and a wrong one stops the migration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import chain
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from alembic import command

from jobs.runtime.postgres.schema import migrate, migrator
from tests.database_rows import MINUTE, write
from tests.pipelines.folding import rows_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXACT = Context(prec=60)
BEFORE = "0004"
PRICES = {
    1: Decimal("0.000000000001"),
    2: Decimal("99999999.999999999999"),
    3: Decimal("0.000003141593"),
    4: Decimal(0),
}
"""Unit price by price version."""

_WINDOWS = "SELECT * FROM usage_windows ORDER BY window_start, meter, price_version"
_STRAGGLERS = "SELECT * FROM stragglers ORDER BY usage_lsn"


@pytest.fixture
def earlier(database: str) -> str:
    """A database as the version before left it."""
    with migrator(database) as config:
        command.downgrade(config, BEFORE)
    return database


def amount(quantity: int, version: int | None) -> Decimal | None:
    return None if version is None else EXACT.multiply(Decimal(quantity), PRICES[version])


def old_rows(chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as the version before wrote them, with amounts of their own."""
    for number in range(200):
        version = chance.choice([None, *PRICES])
        quantity = chance.choice([-5, 0, 1, 10**12, chance.randrange(-(10**9), 2**62 // 10**6)])
        row = {
            "account": "acme",
            "model": "m1",
            "meter": "requests",
            "currency": "EUR",
            "price_version": version,
            "quantity": quantity,
            "amount": amount(quantity, version),
        }
        start = NOON + number * MINUTE
        yield "usage_windows", {**row, "window_start": start, "window_end": start + MINUTE, "late_quantity": 3}
        late = {"event_time": start, "received_at": start + timedelta(hours=1), "late_seconds": 3540}
        lsn = {"usage_lsn": number, "request_id": f"r{number}", "window_start": start, "decision": "correct"}
        yield "stragglers", {**row, **lsn, **late}


def test_every_row_keeps_its_quantity_and_its_amount_to_the_last_digit(
    earlier: str, connection: psycopg.Connection[Any]
) -> None:
    for table, row in old_rows(random.Random(3)):
        write(earlier, table, row)
    before = [rows_of(connection, query) for query in (_WINDOWS, _STRAGGLERS)]
    migrate(earlier)
    connection.close()
    with psycopg.connect(earlier) as migrated:
        after = [rows_of(migrated, query) for query in (_WINDOWS, _STRAGGLERS)]
    for old, new in zip(chain(*before), chain(*after), strict=True):
        version = new.pop("price_version")
        assert new.pop("cause", "stream") == "stream"
        assert new.pop("version", 0) == 0
        assert new.pop("unit_price") == (None if version is None else PRICES[version])
        assert new.pop("contained_quantity", 0) == 0, "no meter billed what another one counts"
        later = [new.pop(name) for name in new.keys() - old.keys()]
        assert set(later) <= {None}, "what was not kept then is not known now"
        assert new == {name: value for name, value in old.items() if name != "price_version"}
        assert str(new["amount"]) == str(old["amount"])
        assert old["price_version"] == version


@pytest.mark.parametrize(("quantity", "wrong"), [(3, "1"), (0, "0.5"), (7, "0.000000000001")])
def test_an_amount_that_no_price_makes_stops_the_migration_and_changes_nothing(
    earlier: str, connection: psycopg.Connection[Any], quantity: int, wrong: str
) -> None:
    row = {"account": "acme", "model": "m1", "meter": "requests", "currency": "EUR", "price_version": 1}
    times = {"window_start": NOON, "window_end": NOON + MINUTE}
    write(earlier, "usage_windows", {**row, **times, "quantity": quantity, "amount": Decimal(wrong)})
    before = rows_of(connection, _WINDOWS)
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="1 rows whose amount is not their quantity times one price"):
        migrate(earlier)
    assert rows_of(connection, _WINDOWS) == before


@pytest.mark.long
def test_the_version_before_can_be_returned_to(earlier: str, connection: psycopg.Connection[Any]) -> None:
    for table, row in old_rows(random.Random(5)):
        write(earlier, table, row)
    before = [rows_of(connection, query) for query in (_WINDOWS, _STRAGGLERS)]
    connection.close()
    migrate(earlier)
    with migrator(earlier) as config:
        command.downgrade(config, BEFORE)
    with psycopg.connect(earlier) as returned:
        assert [rows_of(returned, query) for query in (_WINDOWS, _STRAGGLERS)] == before
