"""Another server takes the database's place and has no replication slot: joins says what that one says, each once.

Method: `oracle`. The rows of the database that is reached then are what joins' newest versions must be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalog.reconciliation import delete_missing, missing_deletions
from jobs.streams import SCHEMAS, Table
from tests.streaming.capturing import Chain, running_chain
from tests.streaming.standby import Standby

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = {Table.ACCOUNTS: ("account",), Table.PRICES: ("plan", "model", "meter", "currency", "effective_from")}
SAID = {Table.ACCOUNTS: ("plan", "effective_from"), Table.PRICES: ("unit_price",)}
_ACCOUNT = """
    INSERT INTO catalog.accounts (account, name, plan, currency) VALUES (%s, 'A', %s, 'EUR')
    ON CONFLICT (account) DO UPDATE SET plan = excluded.plan
"""
_PRICE = """
    INSERT INTO catalog.prices VALUES ('small', 'm', 'requests', 'EUR', %s, %s)
    ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price
"""
_STORED = {
    Table.ACCOUNTS: "SELECT account, plan, coalesce(effective_from, changed_at) FROM catalog.accounts",
    Table.PRICES: "SELECT plan, model, meter, currency, effective_from, unit_price FROM catalog.prices",
}
Said = dict[Table, dict[tuple[Any, ...], tuple[Any, ...]]]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with running_chain(tmp_path_factory.mktemp("failover")) as chain:
        with psycopg.connect(chain.url) as sql:
            sql.execute("INSERT INTO catalog.plans VALUES ('small', 'S'), ('large', 'L')")
        for number in range(6):
            edit(chain, account=f"a{number}")
            edit(chain, day=number, unit_price=1)
        chain.start_worker()
        chain.until_captured()
        yield chain


def edit(chain: Chain, account: str = "", plan: str = "small", *, day: int = -1, unit_price: int | None = None) -> None:
    """A transaction that says so of an account, or of a price; without a price it is deleted."""
    with psycopg.connect(chain.url) as sql:
        if account:
            sql.execute(_ACCOUNT, [account, plan])
        elif unit_price is None:
            sql.execute("DELETE FROM catalog.prices WHERE effective_from = %s", [JANUARY + timedelta(days=day)])
        else:
            sql.execute(_PRICE, [JANUARY + timedelta(days=day), unit_price])


def stored(chain: Chain) -> Said:
    """What the database says."""
    said: Said = {}
    with psycopg.connect(chain.url, options="-c TimeZone=UTC") as sql:
        for table, key in KEYS.items():
            rows = sql.execute(_STORED[table].encode()).fetchall()
            said[table] = {row[: len(key)]: row[len(key) :] for row in rows}
    return said


def held(versions: Mapping[Table, list[dict[str, Any]]]) -> Said:
    """What joins would price with. Fails where two versions of a row that follow each other say the same."""
    said: dict[Table, dict[tuple[Any, ...], tuple[Any, ...] | None]] = {table: {} for table in KEYS}
    for table, key in KEYS.items():
        for row in versions[table]:
            named = tuple(row[name] for name in key)
            says = None if row["deleted"] else tuple(row[name] for name in SAID[table])
            assert said[table].get(named, ()) != says, f"{table}: told twice, and taken twice: {row}"
            said[table][named] = says
    return {table: {key: says for key, says in rows.items() if says is not None} for table, rows in said.items()}


def reconcile(chain: Chain, folder: Path) -> int:
    """What `weir catalog reconcile` does when joins has all that was captured."""
    for table, rows in chain.versions().items():
        write_deltalake(f"{folder}/{table}", pa.Table.from_pylist(rows, schema=SCHEMAS[table]))
    deleted = delete_missing(str(folder), chain.url, missing_deletions(str(folder), chain.url))
    chain.until_captured()
    return deleted


@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_promoted_standby_publishes_earlier_commits_and_its_own(chain: Chain, tmp_path: Path) -> None:
    """The worker runs all the while, and nobody knows what it has captured when the primary is lost."""
    standby = Standby(chain)
    edit(chain, day=0, unit_price=2)
    edit(chain, "a0", "large")
    edit(chain, "new")
    edit(chain, day=1)
    standby.until_it_has_all()
    standby.takes_over()
    edit(chain, day=2, unit_price=3)
    edit(chain, "newer")
    edit(chain, day=3)
    chain.until_captured()
    never_told = held(chain.versions())[Table.PRICES].keys() - stored(chain)[Table.PRICES].keys()
    assert reconcile(chain, tmp_path) == len(never_told)
    assert held(chain.versions()) == stored(chain)


@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_promoted_standby_withdraws_changes_that_it_never_had(chain: Chain, tmp_path: Path) -> None:
    """Its log goes on where it was cut off, behind what was captured of the lost one."""
    standby = Standby(chain)
    standby.until_it_has_all()
    standby.is_cut_off()
    before = stored(chain)
    for number in range(20):
        edit(chain, day=4, unit_price=10 + number)
    edit(chain, day=5)
    edit(chain, "a4", "large")
    edit(chain, "lost")
    chain.until_captured()
    assert held(chain.versions()) == stored(chain) != before
    standby.takes_over()
    assert stored(chain) == before
    edit(chain, day=0, unit_price=4)
    edit(chain, "a5", "large")
    chain.until_captured()
    assert reconcile(chain, tmp_path) == 1, "the account that only the lost one had"
    assert held(chain.versions()) == stored(chain)
