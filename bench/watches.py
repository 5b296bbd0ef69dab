"""What 10,000 stored queries cost: outcomes as analytics reads them, in one process, run past all of them.

`python -m bench.watches [--watches 10000] [--rows 25000] [--batches 20]` prints CPU-seconds per million outcomes of the
evaluation alone, all threads together: the lookup of their columns is what views cost, too.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl

from jobs.analytics.watches.hits import Hits
from jobs.analytics.watches.running import RunningWatches
from metering.contracts.model import Kind
from metering.watches.expressions import column_tests
from metering.watches.parser import parse

COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("account", "model", "region", "status", "user_id"), Kind.TEXT),
    **dict.fromkeys(("input_tokens", "output_tokens"), Kind.INTEGER),
    "latency_ms": Kind.DOUBLE,
    "cached": Kind.BOOLEAN,
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def mixed(chance: random.Random, number: int) -> str:
    """Conditions of five shapes; every tenth compares nothing with `=`, so each outcome is tested."""
    model, account = f"m-{chance.randrange(50)}", f"a-{chance.randrange(1_000)}"
    tokens, slow_ms = chance.randint(50_000, 200_000), chance.randint(100_000, 200_000)
    match number % 10:
        case 0 | 1 | 2 | 3 | 4:
            team = f"t{chance.randrange(100)}"
            return f'model = "{model}" and output_tokens > {tokens} and account.tags.team = "{team}"'
        case 5 | 6:
            return f'account = "{account}" and status in ("error", "cancelled")'
        case 7:
            return f'account = "{account}" and latency_ms > {slow_ms}'
        case 8:
            return f'model in ("{model}", "m-x") and not (cached or region = "eu") and input_tokens >= {tokens}'
        case _:
            return f"latency_ms > {slow_ms} and output_tokens > {chance.randint(1, 100)}"


def unlike(chance: random.Random, number: int) -> str:
    """Conditions no two of which have one shape: nothing is shared but the value by which rows are found."""
    tests = [f"output_tokens > {chance.randint(50_000, 200_000)}", f"latency_ms > {chance.randint(50_000, 200_000)}"]
    lists = " and ".join(
        f'region not in ("r-{number}-{place}", "r-{chance.randrange(9)}")' for place in range(chance.randint(1, 3))
    )
    return f'model = "m-{chance.randrange(50)}" and {chance.choice(tests)} and {lists}'


def of_any_form(chance: random.Random, number: int) -> str:
    """One test that few outcomes meet, and up to three of any column, some of them alternatives."""
    rare = (
        f'account = "a-{chance.randrange(1_000)}"',
        f'user_id in ("u-{chance.randrange(10_000)}", "u-{number}")',
        f"latency_ms > {chance.randint(20_000, 200_000)}",
        f"output_tokens >= {chance.randint(6_000, 100_000)}",
        f'model = "m-{chance.randrange(50)}" and status = "error"',
        f'account.tags.team = "t{chance.randrange(100)}" and not model in ("m-1", "m-{chance.randrange(50)}")',
    )
    tests = [_any_test(chance) for _ in range(chance.randint(0, 3))]
    if len(tests) > 1 and chance.random() < 0.5:
        tests = [f"({' or '.join(tests)})"]
    return " and ".join([chance.choice(rare), *tests])


def _any_test(chance: random.Random) -> str:
    column, kind = chance.choice(list(COLUMNS.items()))
    if kind is Kind.TEXT:
        value = f'"{column[0]}-{chance.randrange(9)}"'
        ways = (
            f"!= {value}",
            f'in ({value}, {value[:-1]}0")',
            f"starts with {value}",
            "is not null",
            f"not in ({value})",
        )
        return f"{column} {chance.choice(ways)}"
    if kind is Kind.BOOLEAN:
        return chance.choice((column, f"not {column}", f"{column} is null"))
    return f"{column} {chance.choice(('<', '<=', '>', '>=', '!='))} {chance.randint(1, 9_000)}"


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
    for name, condition in {"five shapes": mixed, "no two alike": unlike, "of any form": of_any_form}.items():
        chance = random.Random(1)
        conditions = [condition(chance, number) for number in range(given.watches)]
        compiled, per_million, hits = measure(conditions, given.rows, given.batches, 2)
        print(
            f"{name}: {given.watches:,} watches, {given.batches} batches of {given.rows:,}: {per_million:.2f} CPU-s "
            f"per million outcomes, {hits:,} hits, compiled once in {compiled:.2f} CPU-s"
        )


if __name__ == "__main__":
    main()
