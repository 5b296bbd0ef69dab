"""`python -m bench.dumped`: what it takes to restore a dump of Postgres into an empty server, by its windows.

Other tables are small beside them. CPU-seconds are those of the server and of psql; initdb is not in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from bench.report import RESULTS, machine
from jobs.runtime.postgres.schema import migrate, schema_is_current
from laptop.database import embedded_database, server_program

FILL = """
INSERT INTO usage_windows
    (window_start, window_end, account, model, meter, currency, price_version, quantity, unit_price)
SELECT minute, minute + interval '1 minute', 'acct-' || mod(i, 1000), 'model-' || mod(i, 7), 'requests', 'EUR', 1,
       mod(i, 97), 0.0001
FROM (
    SELECT i, timestamptz '2026-11-01' + i / 1000 * interval '1 minute' AS minute FROM generate_series(0, %s - 1) AS i
) AS windows
"""
FOUND = "SELECT count(*), pg_database_size(current_database()) FROM usage_windows"


@dataclass(frozen=True)
class Restored:
    """One dump of so many windows, restored."""

    windows: int
    dump_bytes: int
    database_bytes: int
    seconds: float
    cpu_seconds: float


def main(windows: Annotated[list[int] | None, typer.Argument(help="Sizes, in windows.")] = None) -> None:
    """Measure each size, and write bench/results/."""
    restored = [asdict(restore(count)) for count in windows or (50_000, 200_000)]
    written = RESULTS / f"dumped-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    written.write_text(json.dumps({"machine": machine(), "restored": restored}, indent=2) + "\n")
    typer.echo(written.read_text())


def restore(windows: int) -> Restored:
    """Raises RuntimeError where the restored database is another one."""
    with tempfile.TemporaryDirectory() as scratch:
        dump, new = Path(scratch) / "weir.sql", Path(scratch) / "new"
        with embedded_database(Path(scratch) / "old", timeout_seconds=120) as url:
            migrate(url)
            with psycopg.connect(url, options="-c search_path=weir") as database:
                database.execute(FILL, [windows])
            # The new server has no other roles that grants could name.
            subprocess.run(
                [*server_program("pg_dump"), "--no-privileges", "-d", url], stdout=dump.open("wb"), check=True
            )
        with embedded_database(new, timeout_seconds=120):
            pass
        began, used = time.monotonic(), _cpu_seconds()
        with embedded_database(new, timeout_seconds=120) as url:
            command = [*server_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", url]
            subprocess.run(command, stdin=dump.open("rb"), stdout=subprocess.DEVNULL, check=True)
            seconds = time.monotonic() - began
            with psycopg.connect(url, options="-c search_path=weir") as database:
                found, size = database.execute(FOUND).fetchone() or (0, 0)
            is_whole = found == windows and schema_is_current(url)
        if not is_whole:
            raise RuntimeError(f"{found} of {windows} windows were restored")
        return Restored(windows, dump.stat().st_size, size, round(seconds, 1), round(_cpu_seconds() - used, 2))


def _cpu_seconds() -> float:
    """Of processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    typer.run(main)
