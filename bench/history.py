"""The statements of pages, commands, gauges and the API over years of usage: their time, and what they read.

`python -m bench.history` fills a database and measures them. A test runs the same statements at two lengths of history,
and fails where a statement about a month reads more than before.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import psycopg
import typer
from psycopg.rows import dict_row, tuple_row

from bench.history_rows import UNTIL, fill
from bench.record_questions import RECORDED, record_lists, record_pages
from bench.record_rows import fill_records
from bench.report import RESULTS, machine
from cli.sessions import SessionQuery, session_rows
from dashboard.backend import Backend
from dashboard.queries.accounts import read_accounts
from dashboard.queries.bill_values import read_values
from dashboard.queries.bills import read_bills
from dashboard.queries.corrections import CorrectionFilter, read_corrections
from dashboard.queries.hourly_requests import read_hourly_requests
from dashboard.queries.sessions import read_history, read_open_sessions
from dashboard.queries.stragglers import StragglerFilter, read_stragglers
from dashboard.queries.windows import WindowFilter, read_windows
from dashboard.settings import Settings
from jobs.billing.gauges import totals
from jobs.close.proof import Proof, settled_since, unproved
from jobs.ingestion.adaptive_heartbeat import is_anything_open
from jobs.queries.bills import read_month, read_totals
from jobs.queries.correction_consumers import correction_consumers
from jobs.queries.corrections import CorrectionQuery, correction_rows
from jobs.queries.forecasts import forecast_rows
from jobs.queries.limits import limits_in_use
from jobs.queries.models import ModelQuery, model_rows
from jobs.queries.periods import UTC_ZONE, Window
from jobs.queries.reading import PLANNED, RANDOM_PAGE_COST
from jobs.queries.stragglers import StragglerQuery, straggler_rows
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.runtime.postgres.schema import migrate
from jobs.runtime.postgres.totals import Totals
from jobs.sessionization import gauges as of_sessions
from laptop.database import embedded_database

USED = ("usage_windows", "usage_hours", "usage_days", "usage_months", "corrections", "stragglers", "sessions")
BIG = (*USED, *RECORDED)
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
MONTH = datetime(UNTIL.year, UNTIL.month, 1, tzinfo=UTC)
A_DAY_AGO = UNTIL - timedelta(hours=24)
TWO = ("account-1", "account-17")

_RANGE_ROWS = """
SELECT max(of.reltuples / greatest(of.relpages, 1) * coalesce((
    SELECT option_value::int FROM pg_options_to_table(index.reloptions) WHERE option_name = 'pages_per_range'
), 128))
FROM pg_class AS index JOIN pg_am ON pg_am.oid = index.relam AND amname = 'brin'
JOIN pg_index ON indexrelid = index.oid JOIN pg_class AS of ON of.oid = indrelid
WHERE index.relname = ANY (%s)
"""

Question = Callable[[], object]


@dataclass(frozen=True)
class Statement:
    """One statement with its parameters."""

    text: str
    parameters: Any

    @property
    def is_of_history(self) -> bool:
        """Whether it reads a table that grows with time."""
        return any(table in self.text for table in (*BIG, "usage_spans"))


@dataclass(frozen=True)
class Plan:
    """How a statement ran: milliseconds, buffers, rows read from big tables, and the scans of these tables.

    `ragged`: how many of the rows a BRIN index reads only because it knows whole ranges of pages, up to one range a
    scan. The newest range is between empty and full, so this part goes up and down as a table grows.
    """

    milliseconds: float
    buffers: int
    rows: int
    scans: tuple[str, ...]
    ragged: int = 0

    @property
    def sequential(self) -> list[str]:
        """The scans that read a big table from end to end."""
        return [scan for scan in self.scans if scan.startswith("Seq Scan")]


def questions(url: str) -> Mapping[str, Question]:
    """What is asked, by name: of the last hours, or of the month, before UNTIL; of all accounts, or of TWO."""
    backend = Backend(Settings(postgres_url=url), statement_timeout_seconds=600)
    records = record_lists(url, lambda question: _read(url, question))
    return {**_pages(backend), **record_pages(backend), **_lists(url), **_sums(url), **records}


def _pages(backend: Backend) -> dict[str, Question]:
    month = MONTH.date()
    return {
        "page: accounts": lambda: read_accounts(backend),
        "page Live windows, 1 h": lambda: read_windows(backend, WindowFilter()),
        "page Live windows, 24 h": lambda: read_windows(backend, WindowFilter(hours=24)),
        "page Live windows, 24 h of an account": lambda: read_windows(backend, WindowFilter(24, account=TWO[0])),
        "page Bills": lambda: read_bills(backend, month),
        "page Bills, requests by hour": lambda: read_hourly_requests(backend, UNTIL - timedelta(hours=1)),
        "page Bills, by a dimension": lambda: read_values(backend, TWO[0], month, "api_key_id"),
        "page Late": lambda: read_stragglers(backend, StragglerFilter()),
        "page Corrections": lambda: read_corrections(backend, CorrectionFilter()),
        "page Sessions": lambda: read_open_sessions(backend, None),
        "page Sessions of a user": lambda: read_history(backend, TWO[0], "u-1", retracted=True),
    }


def _lists(url: str) -> dict[str, Question]:
    def usage(window: Window, start: datetime, accounts: tuple[str, ...] = (), zone: ZoneInfo = UTC_ZONE) -> Question:
        query = UsageQuery(start, UNTIL, window, accounts=accounts, zone=zone)
        return lambda: _read(url, lambda at: list(usage_rows(at, query)))

    return {
        "usage, minutes of a day": usage(Window.MINUTE, A_DAY_AGO),
        "usage, hours of a month": usage(Window.HOUR, MONTH),
        "usage, hours of a month of 2 accounts": usage(Window.HOUR, MONTH, TWO),
        "usage, days of a month": usage(Window.DAY, MONTH),
        "usage, days of a month of 2 accounts": usage(Window.DAY, MONTH, TWO),
        "usage, days of a month in Berlin": usage(Window.DAY, MONTH, (), BERLIN),
        "usage, days of a month in Kolkata": usage(Window.DAY, MONTH, (), KOLKATA),
        "usage, the month": usage(Window.MONTH, MONTH),
        "stragglers of a day": lambda: _read(url, lambda at: list(straggler_rows(at, StragglerQuery(A_DAY_AGO)))),
        "corrections of a day": lambda: _read(url, lambda at: list(correction_rows(at, CorrectionQuery(A_DAY_AGO)))),
        "sessions of a day": lambda: _read(url, lambda at: list(session_rows(at, SessionQuery(A_DAY_AGO)))),
    }


def _sums(url: str) -> dict[str, Question]:
    month = MONTH.date()

    def scraped(gauges: Sequence[Totals]) -> Callable[[psycopg.Connection[Any]], list[Any]]:
        def read(database: psycopg.Connection[Any]) -> list[Any]:
            with database.cursor(row_factory=tuple_row) as cursor:
                return [list(gauge.read(cursor)) for gauge in gauges]

        return read

    def opened() -> bool:
        with psycopg.connect(url) as connection:
            return is_anything_open(connection, A_DAY_AGO)

    of_billing = scraped(totals("billing"))
    proof = Proof(1, 5, billed_frontier=A_DAY_AGO)

    return {
        "bill of a month": lambda: _read(url, lambda at: read_month(at, month)),
        "bill of a month of 2 accounts": lambda: _read(url, lambda at: read_month(at, month, TWO)),
        "totals of a month of 2 accounts": lambda: _read(url, lambda at: read_totals(at, month, TWO)),
        "forecast": lambda: _read(url, lambda at: list(forecast_rows(at, month, (), UNTIL))),
        "forecast of 2 accounts": lambda: _read(url, lambda at: list(forecast_rows(at, month, TWO, UNTIL))),
        "models of a month": lambda: _read(url, lambda at: list(model_rows(at, None, ModelQuery(MONTH, UNTIL)))),
        "limits of 2 accounts": lambda: _read(url, lambda at: list(limits_in_use(at, TWO, ("input_tokens",), UNTIL))),
        "close: changed since the audit": lambda: _read(url, lambda at: unproved(at, proof, TWO, month)),
        "close: settled since the audit": lambda: _read(url, lambda at: settled_since(at, proof, TWO, month)),
        "gauges of billing": lambda: _read(url, of_billing),
        "gauges of sessionization": lambda: _read(url, scraped(of_sessions.totals("sessionization"))),
        "ingestion: is anything open": opened,
        "consumers of corrections": lambda: _read(url, lambda at: list(correction_consumers(at))),
    }


def _read(url: str, question: Callable[[Any], object]) -> object:
    """Ask within one read-only snapshot, as commands and the API do."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(
            f"SELECT {PLANNED}, set_config('weir.accounts', '*', true), set_config('TimeZone', 'UTC', true)"
        )
        return question(connection)


@contextmanager
def recorded() -> Iterator[list[Statement]]:
    """What psycopg executes meanwhile."""
    found: list[Statement] = []
    plain, named = psycopg.Cursor.execute, psycopg.ServerCursor.execute

    def recording(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executed(cursor: Any, query: Any, params: Any = None, **more: Any) -> Any:
            found.append(Statement(str(query), params))
            return execute(cursor, query, params, **more)

        return executed

    changed: Any = psycopg
    changed.Cursor.execute, changed.ServerCursor.execute = recording(plain), recording(named)
    try:
        yield found
    finally:
        changed.Cursor.execute, changed.ServerCursor.execute = plain, named


def plan_of(connection: psycopg.Connection[Any], statement: Statement) -> Plan:
    """Run a statement again with EXPLAIN (ANALYZE, BUFFERS)."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}"
        ((found,),) = cursor.execute(explained.encode(), statement.parameters).fetchall()
    root = found[0]["Plan"]
    rows, ragged, scans = 0, 0, []
    for node in _nodes(root):
        if node.get("Relation Name") in BIG:
            rechecked = node.get("Rows Removed by Index Recheck", 0)
            removed = node.get("Rows Removed by Filter", 0) + rechecked
            rows += round((node["Actual Rows"] + removed) * node["Actual Loops"])
            ragged += round(min(rechecked, _range_rows(connection, node)) * node["Actual Loops"])
            scans.append(f"{node['Node Type']} on {node['Relation Name']}")
    buffers = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    return Plan(found[0]["Execution Time"], buffers, rows, tuple(dict.fromkeys(scans)), ragged)


def _range_rows(connection: psycopg.Connection[Any], scan: Mapping[str, Any]) -> float:
    """How many rows are in a range of the BRIN index that a scan reads by; 0 for other indexes."""
    indexes = [node["Index Name"] for node in _nodes(scan) if "Index Name" in node]
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_RANGE_ROWS, [indexes]).fetchone()
    return float(row[0]) if row and row[0] is not None else 0.0


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def plans(connection: psycopg.Connection[Any], question: Question) -> list[Plan]:
    """How the statements of a question run that read history: the second time, as gauges remember what they summed."""
    question()
    with recorded() as statements:
        question()
    connection.execute("SELECT set_config('weir.accounts', '*', false), set_config('TimeZone', 'UTC', false)")
    connection.execute(f"SET random_page_cost = {RANDOM_PAGE_COST}".encode())
    return [plan_of(connection, statement) for statement in statements if statement.is_of_history]


def measured(url: str, repetitions: int) -> Iterator[dict[str, Any]]:
    """Of each question, in a filled database: seconds with Python's part, and how its statements ran the last time."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name, question in questions(url).items():
            found, seconds = plans(connection, question), []
            for _ in range(repetitions):
                started = time.perf_counter()
                question()
                seconds.append(time.perf_counter() - started)
            seconds.sort()
            yield {
                "question": name,
                "median_seconds": round(median(seconds), 4),
                "p95_seconds": round(seconds[math.ceil(0.95 * repetitions) - 1], 4),
                **{part: round(sum(getattr(plan, part) for plan in found)) for part in ("rows", "buffers")},
                "scans": list(dict.fromkeys(scan for plan in found for scan in plan.scans)),
            }


def main(
    windows: Annotated[int, typer.Option(help="Rows of usage_windows.")] = 5_000_000,
    accounts: int = 2_000,
    days: int = 730,
    repetitions: Annotated[int, typer.Option(help="How often each question is asked, warm.")] = 20,
) -> None:
    """Fill a database of its own with years of usage, ask each question of it, and write bench/results/history-<time>.

    5 million windows take about 5 minutes on two cores, and 3 GB of disk in TMPDIR.
    """
    sizes = {"windows": windows, "accounts": accounts, "days": days}
    with tempfile.TemporaryDirectory(prefix="weir-history-") as folder, embedded_database(Path(folder)) as url:
        migrate(url)
        began = time.monotonic()
        fill(url, **sizes)
        fill_records(url, **sizes)
        typer.echo(f"filled in {time.monotonic() - began:.0f} s")
        load, found = os.getloadavg()[0], []
        for row in measured(url, repetitions):
            found.append(row)
            typer.echo(
                f"| {row['question']} | {row['median_seconds']:.3f} | {row['p95_seconds']:.3f} | {row['rows']:,} |"
            )
        with psycopg.connect(url) as connection:
            counted = {table: _rows_of(connection, table) for table in BIG}
    path = RESULTS / f"history-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    loads = {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)}
    result = {"machine": machine(), "load": loads, "rows": counted, "repetitions": repetitions, "questions": found}
    path.write_text(json.dumps(result | sizes, indent=2) + "\n")
    typer.echo(f"Written to {path}")


def _rows_of(connection: psycopg.Connection[Any], table: str) -> int:
    """About how many rows a table has, by its statistics."""
    row = connection.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table]).fetchone()
    return int(row[0]) if row else 0


if __name__ == "__main__":
    typer.run(main)
