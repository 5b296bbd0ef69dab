"""Pricing by itself, as joins does it with each batch: CPU-seconds of one process, the cases taken in turn.

A whole application compiles itself warm meanwhile, which on a busy machine differs by more than what is asked here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bench.events import ACCOUNTS, MODELS, SPREAD_SECONDS, USERS, catalog
from jobs.joins.catalog_versions import PRICE_KEY, account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import Memory
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.joins.versions_in_use import VersionsInUse
from jobs.streams import ACCOUNTS as ACCOUNTS_SCHEMA
from metering.vocabulary import Outcome

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BATCH_OUTCOMES = 50_000
SMALL_BATCH_OUTCOMES = 100
ROUNDS = 7


def cpu_seconds_per_million(tables: Mapping[int, pa.Table]) -> dict[int, float]:
    """Versions of prices (streams.PRICES), by how many → what a million outcomes cost; the median of ROUNDS."""
    config, batches = JoinsConfig(), [outcomes(BATCH_OUTCOMES, seed) for seed in range(2)]
    accounts, known = _accounts(), {count: _in_use(table) for count, table in tables.items()}

    def all_batches(count: int) -> None:
        for batch in batches:
            price(batch, config.declared, accounts, known[count])

    found = _in_turn(known, all_batches)
    return {count: seconds / (BATCH_OUTCOMES * len(batches)) * 1e6 for count, seconds in found.items()}


def cpu_ms_per_change(tables: Mapping[int, pa.Table]) -> dict[int, float]:
    """What a small batch costs before which a price that it needs was changed, by how many versions there are."""
    config, batch = JoinsConfig(), outcomes(SMALL_BATCH_OUTCOMES, 3)
    accounts, known = _accounts(), {count: _in_use(table) for count, table in tables.items()}
    changes = {count: table.filter(pc.equal(table["plan"], "bench")).slice(0, 1) for count, table in tables.items()}

    def change(count: int) -> None:
        known[count].of(changes[count])
        known[count].add(changes[count])
        price(batch, config.declared, accounts, known[count])

    return {count: seconds * 1e3 for count, seconds in _in_turn(known, change).items()}


def _in_turn(cases: Mapping[int, VersionsInUse], once: Callable[[int], None]) -> dict[int, float]:
    """CPU-seconds of one time, each case in turn, the first time not counted."""
    found: dict[int, list[float]] = {count: [] for count in cases}
    for _ in range(ROUNDS + 1):
        for count in cases:
            began = time.process_time()
            once(count)
            found[count].append(time.process_time() - began)
    return {count: statistics.median(seconds[1:]) for count, seconds in found.items()}


def _in_use(table: pa.Table) -> VersionsInUse:
    return VersionsInUse(table, PRICE_KEY, price_versions)


def _accounts() -> VersionsInUse:
    rows = [{**account, "lsn": 1, "effective_from": NOW, "deleted": False} for account in catalog()["accounts"]]
    return VersionsInUse(pa.Table.from_pylist(rows, schema=ACCOUNTS_SCHEMA), ("account",), account_versions)


def outcomes(count: int, seed: int) -> pl.DataFrame:
    """Matched requests (`resolve`) with the accounts, models and times of `bench.events`."""
    chance, schema = Random(seed), resolve(Memory.empty(JoinsConfig().carried).rows, None).schema
    made: dict[str, Sequence[Any]] = {
        "account": [f"acct-{int(USERS * chance.random() ** 2) % ACCOUNTS:02d}" for _ in range(count)],
        "model": [f"model-{int(MODELS * chance.random() ** 2):02d}" for _ in range(count)],
        "event_time": [NOW - timedelta(seconds=SPREAD_SECONDS * chance.random()) for _ in range(count)],
        "request_id": [f"{seed}-{number}" for number in range(count)],
        "request_lsn": range(2, 2 * count + 2, 2),
        "completion_lsn": range(3, 2 * count + 3, 2),
        "outcome": [Outcome.MATCHED.value] * count,
    }
    reported = {name: [number % 3_000 for number in range(count)] for name in schema if name.startswith("quantity:")}
    given = {**made, **reported}
    columns = {name: pl.Series(given.get(name, [None] * count), strict=False) for name in schema}
    return pl.DataFrame(columns).select(pl.col(name).cast(kind) for name, kind in schema.items())
