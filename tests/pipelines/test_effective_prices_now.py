"""Method: random edits of a real catalog and folds that are cut or undone anywhere, at instants that come and go.

At each position the function `catalog.contracts_at` says what the table, and whoever reads it, must have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from structlog.testing import capture_logs

from jobs.ingestion.effective_prices import (
    COLUMNS,
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
NOTES = "SELECT account, plan, due_at FROM catalog.effective_prices_due ORDER BY due_at, account, plan"

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
    with database.cursor() as cursor:
        cursor.row_factory = psycopg.rows.tuple_row
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
    for plan in PLANS:
        catalog.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
    for step in steps:
        if isinstance(step, list):
            for edit in step:
                apply(catalog, edit)
        elif step[0] == "fold":
            with catalog.transaction(force_rollback=step[3]), catalog.cursor() as cursor:
                cursor.row_factory = psycopg.rows.tuple_row
                fold_effective_prices(cursor, step[1], step[2])
        else:
            query = ContractQuery(step[1], tuple(sorted(step[2])))
            assert rows_read(catalog, query) == rows_defined(catalog, query)
    fold_all(catalog, last, notes)
    assert stored(catalog) == defined(catalog, last)
    for at in EVER:
        query = ContractQuery(at)
        assert rows_read(catalog, query) == rows_defined(catalog, query), "also at an instant that it is not of"
    catalog.rollback()
