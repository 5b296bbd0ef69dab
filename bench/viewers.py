"""`python -m bench.viewers`: what ten viewers of the live page cost, and what following the stream would change.

CPU-seconds, which a busy machine changes little: of reading the page's rows (this process and Postgres), of drawing
them, and of taking one change of a window from the topic `windows` (without the Kafka client's own work, so at least
that much). Writes bench/results/viewers-<time>.json.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import psutil
import psycopg
import typer
from psycopg.rows import dict_row
from rich.console import Console
from streamlit.testing.v1 import AppTest

from bench.dashboard_rows import FILL
from bench.processes import own_cpu_seconds
from bench.report import RESULTS, machine
from dashboard.backend import Backend
from dashboard.queries.windows import WindowFilter, read_windows
from dashboard.settings import Settings
from dashboard.views.windows import REFRESH_SECONDS
from deployment.stack import POSTGRES_VARIABLE
from jobs.billing.messages import window_message
from jobs.runtime.postgres.schema import migrate
from laptop.database import embedded_database
from metering.csv_lines import text_of

VIEWERS = 10
READS, RUNS = 40, 10
CHANGES = 20_000
PAGE = "from dashboard.views import windows\nwindows.show()\n"


def main(windows: Annotated[int, typer.Option(min=1)] = 1_000_000) -> None:
    """Measure and write."""
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as scratch, embedded_database(Path(scratch)) as url:
        console.print(f"{windows:,} usage windows are made …")
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL.replace(":windows", str(windows)).encode())
            connection.execute("VACUUM ANALYZE")
        found = {"usage_windows": windows, **_measured(url)}
    at = datetime.now(UTC)
    file = RESULTS / f"viewers-{at:%Y-%m-%dT%H%M%SZ}.json"
    file.write_text(json.dumps({"measured_at": at.isoformat(), "machine": machine(), **found}, indent=1) + "\n")
    console.print_json(json.dumps(found))
    console.print(f"Written to {file}")


def _measured(url: str) -> dict[str, Any]:
    """CPU-seconds of one reading, of one drawing, and of one change; and of ten viewers, in cores."""
    backend = Backend(Settings(postgres_url=url))
    read_windows(backend, WindowFilter())
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        server = psutil.Process(psutil.Process(connection.info.backend_pid).ppid())
        rows = connection.execute(
            "SELECT * FROM usage_windows ORDER BY window_start DESC LIMIT %s", [CHANGES]
        ).fetchall()
        own, of_server = time.process_time(), own_cpu_seconds(server)
        for _ in range(READS):
            read_windows(backend, WindowFilter())
        read_here = (time.process_time() - own) / READS
        read_there = (own_cpu_seconds(server) - of_server) / READS
    os.environ[POSTGRES_VARIABLE] = url
    page = AppTest.from_string(PAGE, default_timeout=300).run()
    assert not page.exception, page.exception
    own = time.process_time()
    for _ in range(RUNS):
        page.run()
    drawing = (time.process_time() - own) / RUNS - read_here
    change = _of_a_change([window_message(_published(row))[1] for row in rows])
    reads_per_second = min(1.0, VIEWERS / REFRESH_SECONDS)  # readings are shared for a second
    reading_cores = reads_per_second * (read_here + read_there)
    return {
        "cpu_ms": {"reading, here": read_here * 1e3, "reading, Postgres": read_there * 1e3, "drawing": drawing * 1e3},
        "cpu_us_of_a_change": change * 1e6,
        "cores_of_ten_viewers": {"reading": reading_cores, "drawing": VIEWERS / REFRESH_SECONDS * drawing},
        "changes_per_second_that_cost_as_much_as_reading": reading_cores / change,
    }


def _published(row: dict[str, Any]) -> dict[str, Any]:
    """A row as billing publishes it: with its decimals as texts."""
    return {name: text_of(value) if isinstance(value, Decimal) else value for name, value in row.items()}


def _of_a_change(records: list[bytes]) -> float:
    """CPU-seconds to take a change from its record into a table in memory."""
    newest: dict[str, tuple[int, Decimal]] = {}
    began = time.process_time()
    for record in records:
        data = json.loads(record)["data"]
        if data["version"] > newest.get(data["id"], (-1, Decimal(0)))[0]:
            newest[data["id"]] = data["version"], Decimal(data["quantity"])
    return (time.process_time() - began) / len(records)


if __name__ == "__main__":
    typer.run(main)
