"""What 10,000 stored queries cost: outcomes as analytics reads them, in one process, run past all of them.

`python -m bench.watches [--watches 10000] [--rows 25000] [--batches 20]` prints CPU-seconds per million outcomes of the
evaluation alone, all threads together: the lookup of their columns is what views cost, too.
"""

from __future__ import annotations

import argparse
import random
import time
from datetime import UTC, datetime
from typing import Any

import polars as pl

from bench.watch_conditions import COLUMNS, MIXES
from jobs.analytics.watches.hits import Hits
from jobs.analytics.watches.running import RunningWatches
from metering.watches.expressions import column_tests
from metering.watches.parser import parse

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def running(conditions: list[str]) -> RunningWatches:
    """The same as analytics reads them from Postgres."""
    stored = []
    for number, condition in enumerate(conditions, 1):
        kinds = {(test.column, test.kind.value) for test in column_tests(parse(condition, COLUMNS))}
        stored.append((number, condition, tuple(sorted(kinds))))
    accounts = pl.DataFrame(
        {
            "account": [f"a-{number}" for number in range(1_000)],
            "effective_us": pl.Series([0] * 1_000, dtype=pl.Int64),
            "account.tags.team": [f"t{number % 100}" for number in range(1_000)],
            "version_lsn": pl.Series([0] * 1_000, dtype=pl.Int64),
        }
    )
    return RunningWatches((len(stored), len(stored)), tuple(stored), accounts)


def outcomes(chance: random.Random, count: int) -> pl.DataFrame:
    """Rows of usage as outcomes."""
    texts = {"account": ("a", 1_000), "model": ("m", 50), "region": ("r", 9), "user_id": ("u", 10_000)}
    columns: dict[str, Any] = {
        name: [f"{prefix}-{chance.randrange(distinct)}" for _ in range(count)]
        for name, (prefix, distinct) in texts.items()
    }
    columns |= {
        "status": chance.choices(["completed", "error", "cancelled"], [97, 2, 1], k=count),
        "input_tokens": [int(chance.expovariate(1 / 3_000)) for _ in range(count)],
        "output_tokens": [int(chance.expovariate(1 / 800)) for _ in range(count)],
        "latency_ms": [chance.expovariate(1 / 3_000) for _ in range(count)],
        "cached": [chance.random() < 0.2 for _ in range(count)],
        "event_time": [NOON] * count,
        "request_lsn": range(1, 2 * count, 2),
        "completion_lsn": range(2, 2 * count + 1, 2),
        "sign": [1] * count,
        "request_id": [f"r-{number}" for number in range(count)],
    }
    return pl.DataFrame(columns, schema_overrides={"event_time": pl.Datetime("us", "UTC")})


def measure(conditions: list[str], rows: int, batches: int, seed: int) -> tuple[float, float, int]:
    """CPU-seconds to compile, then per million outcomes, and how many hits there were."""
    chance, watches = random.Random(seed), running(conditions)
    started = time.process_time()
    assert watches.index is not None
    compiled = time.process_time() - started
    parts = [outcomes(chance, rows) for _ in range(batches)]
    started, hits = time.process_time(), 0
    for part in parts:
        found = Hits()
        found.add(part, watches)
        hits += sum(row["net"] for row in found.hours())
    return compiled, (time.process_time() - started) * 1e6 / (rows * batches), hits


def main() -> None:
    """Print each mix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watches", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    for name, condition in MIXES.items():
        chance = random.Random(1)
        conditions = [condition(chance, number) for number in range(given.watches)]
        compiled, per_million, hits = measure(conditions, given.rows, given.batches, 2)
        print(
            f"{name}: {given.watches:,} watches, {given.batches} batches of {given.rows:,}: {per_million:.2f} CPU-s "
            f"per million outcomes, {hits:,} hits, compiled once in {compiled:.2f} CPU-s"
        )


if __name__ == "__main__":
    main()
