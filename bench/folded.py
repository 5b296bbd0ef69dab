"""`python -m bench.folded URL`: what a fold costs the database by distinct keys, with and without roll-ups.

A batch has one row per key, in no order. It is folded as new keys, then again as known ones, and committed each time:
what is printed of known ones is the fold that took least. The database is one that nobody needs: it gets these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import polars as pl
import psycopg
import pyarrow as pa
import typer

from bench.history_rows import METERS
from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.staged import STAGED
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Fold
from jobs.runtime.postgres.ownership import MEMORY
from jobs.runtime.postgres.sink import stage

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
FOLDS = {20: 100, 200: 30, 1_000: 16, 10_000: 5, 100_000: 3, 1_000_000: 1}
"""How often a batch of so many known keys is folded."""
SWITCH = "ALTER TABLE usage_windows {0} TRIGGER USER; ALTER TABLE usage_days {0} TRIGGER USER"


@dataclass(frozen=True)
class Shape:
    """Whose keys a batch has: a minute has one of each account, model of an account and meter, the next ones follow."""

    accounts: int = 2_000
    models: int = 1
    meters: tuple[str, ...] = METERS


SHAPES = {
    "2,000 accounts": Shape(),
    # Each key is a day, an hour and a month of its own.
    "a minute of all": Shape(accounts=1_000_000),
    "10 hot accounts": Shape(accounts=10, models=20),
    "20 meters": Shape(meters=tuple(f"meter_{number}" for number in range(20))),
}


def cpu_seconds(pid: int) -> float:
    """Of the server's process for a session: what a busy machine changes least. (Linux)"""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def batch(keys: int, begins: datetime, shape: Shape = SHAPES["2,000 accounts"]) -> pa.Table:
    """`keys` rows of STAGED with one key each, from the minute `begins` on."""
    number = pl.int_range(keys, dtype=pl.Int64)
    place, meter = number // len(shape.meters), number % len(shape.meters)
    account, model = place // shape.models % shape.accounts, place % shape.models
    minute = pl.lit(begins) + pl.duration(minutes=place // shape.models // shape.accounts)
    price = pl.lit("0.000001500000")
    rows = pl.select(
        cause=pl.lit("stream"),
        window_start=minute,
        account=pl.format("account-{}", account),
        model=pl.format("model-{}", (account + model) % 20),
        meter=meter.replace_strict(dict(enumerate(shape.meters)), return_dtype=pl.String),
        currency=pl.lit("EUR"),
        price_version=meter + 1,
        unit_price=price,
        lowest_unit_price=price,
        sign=pl.lit(1, pl.Int32),
        late=pl.lit(value=False),
        is_correction=pl.lit(value=False),
        day=minute.dt.date(),
        first_lsn=number + 1,
        quantity=7 + number % 91,
        metered_rows=pl.lit(1, pl.Int64),
        unmetered_rows=pl.lit(0, pl.Int64),
        unsound_rows=pl.lit(0, pl.Int64),
    )
    absent = [pl.lit(None).alias(name) for name in STAGED.names if name not in rows.columns]
    return rows.with_columns(absent).select(STAGED.names).to_arrow().cast(STAGED)


def shuffled(table: pa.Table) -> pa.Table:
    """The same rows of STAGED, as they come from `sums`: in no order."""
    return pl.DataFrame(table).sample(fraction=1.0, shuffle=True, seed=1).to_arrow().cast(STAGED)


def folds(url: str, table: pa.Table, count: int) -> Iterator[tuple[float, int]]:
    """CPU-seconds and bytes of WAL of each of `count` folds of the same batch."""
    config = BillingConfig(publish=())
    around = Fold(NOON, NOON, 10**9, is_whole=True, rules=(EffectiveRules(1, config.deciding),))
    with psycopg.connect(url, options=MEMORY) as connection:
        pid = connection.info.backend_pid
        for _ in range(count):
            before, written = cpu_seconds(pid), _written(connection)
            with connection.cursor() as cursor:
                stage(cursor, STAGED, table)
                fold(cursor, config, around)
            connection.commit()
            yield cpu_seconds(pid) - before, _written(connection) - written


def _written(connection: psycopg.Connection[tuple[int]]) -> int:
    found = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    assert found is not None
    return found[0]


def main(
    url: Annotated[str, typer.Argument(help="A migrated database, written to.")],
    keys: Annotated[list[int] | None, typer.Option(help="Keys of a batch, of FOLDS.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Whose keys they are, of SHAPES.")] = None,
    roll_ups: Annotated[bool | None, typer.Option(help="Only with, or without, hours and months.")] = None,
) -> None:
    """Print the CPU time and WAL of a key: of new keys, and of known ones, which most are."""
    begins = NOON
    for switched in ("DISABLE", "ENABLE") if roll_ups is None else ("ENABLE" if roll_ups else "DISABLE",):
        with psycopg.connect(url) as connection:
            connection.execute(SWITCH.format(switched).encode())
        for name in shape or SHAPES:
            for count in keys or FOLDS:
                begins += timedelta(days=100)
                new, *known = folds(url, shuffled(batch(count, begins, SHAPES[name])), 1 + FOLDS[count])
                line = f"{count:9,} keys, {name:15} {'with' if switched == 'ENABLE' else 'without':7} roll-ups:"
                for of, (seconds, written) in (("new", new), ("known", min(known))):
                    line += f" {of} {1e6 * seconds / count:6.1f} us, {written / count:6,.0f} bytes of WAL;"
                typer.echo(line.rstrip(";"))


if __name__ == "__main__":
    typer.run(main)
