"""Sums of tables are kept for the scopes that were asked about last, and no more: each viewer may have another."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dashboard.backend import Backend
from dashboard.digest import DIGESTS, MAX_DIGESTS, Recipe, digest
from dashboard.scope import Scope
from dashboard.settings import Settings
from jobs.streams import Table
from tests.dashboard.seeding import Day, usage_of, write_table

RECIPE = Recipe("rows", Table.USAGE, 1, lambda rows: rows.select("received_at"), lambda rows: rows)


def test_as_many_scopes_as_there_are_customers_fill_no_memory(tables: Path) -> None:
    now = datetime.now(UTC)
    write_table(tables, Table.USAGE, [next(iter(usage_of(Day(now=now))))])

    def ask(account: str) -> Backend:
        backend = Backend(Settings(tables=str(tables), scope=Scope(frozenset({account}))))
        assert digest(backend, RECIPE, now.date()) is not None
        return backend

    often = ask("acme")
    for number in range(MAX_DIGESTS):
        ask(f"customer-{number}")
        ask("acme")
    assert len(DIGESTS) == MAX_DIGESTS
    assert often in {backend for _, _, backend in DIGESTS}
