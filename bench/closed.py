"""`python -m bench.closed`: what a close of 10,000 accounts costs, and then the checks of their invoices (I7, I9).

Each account has a plan with a fee, a minimum and included units, one meter with tiers, and about 100 windows a month.
Months are closed one after the other, so that the checks have the invoices of all of them. Prints a line each.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import psycopg
import typer
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.audit.bills.invoices import lines_of_usage, unchanged
from jobs.billing.config import BillingConfig
from jobs.close.account_months import following
from jobs.close.config import CloseConfig
from jobs.close.issue import Terms
from jobs.close.run import REFUSED, Close
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.schema import migrate
from laptop.database import embedded_database

FIRST = date(2026, 1, 1)
CATALOG = """
INSERT INTO catalog.plans VALUES ('plan', 'Plan');
INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)
SELECT 'account-' || i, 'Account ' || i, 'plan', CASE i % 2 WHEN 0 THEN 'EUR' ELSE 'USD' END,
       (ARRAY['UTC', 'Europe/Berlin', 'America/New_York'])[i % 3 + 1], '2025-12-01'
FROM generate_series(0, :accounts - 1) AS i;
INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, terms)
SELECT 'plan', 'plan{"+":"month"}', 'requests', currency, '2025-12-01', '{"kind": "plan", "flat_fee": "5",
       "minimum_amount": "20", "included": {"input_tokens": "10000"}}' FROM unnest(ARRAY['EUR', 'USD']) AS currency;
INSERT INTO price_ladders (price_version, plan, model, meter, currency, effective_from, unit_price, terms)
SELECT number * 2 + side, 'plan', 'model-*', meter, (ARRAY['EUR', 'USD'])[side + 1], '2025-12-01',
       CASE WHEN meter <> 'requests' THEN 0.0000015 END, CASE WHEN meter = 'requests' THEN
       '{"kind":"graduated","tiers":[{"up_to":"10","unit_price":"0.02"},{"unit_price":"0.01"}]}' END
FROM unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) WITH ORDINALITY AS meters (meter, number),
     generate_series(0, 1) AS side;
INSERT INTO positions (job, input, next_position, frontier) VALUES ('billing', 'usage', 2, '2027-12-01');
"""
USAGE = """
INSERT INTO usage_windows (account, model, meter, currency, price_version, window_start, window_end, quantity,
    unit_price)
SELECT 'account-' || i % :accounts, 'model-' || place / 9 % 3,
       (ARRAY['requests', 'input_tokens', 'output_tokens'])[place % 3 + 1],
       CASE i % 2 WHEN 0 THEN 'EUR' ELSE 'USD' END, (place % 3 + 1) * 2 + i % 2, minute, minute + interval '1 minute',
       CASE place % 3 WHEN 0 THEN 1 + place % 5 ELSE 100 + place * 31 % 9973 END,
       CASE WHEN place % 3 > 0 THEN 0.0000015 END
FROM (
    SELECT i, place, (':month'::date + place / 9 % 26 + 1 + interval '12 hours' + make_interval(mins => place))
           AT TIME ZONE 'UTC' AS minute
    FROM (SELECT i, i / :accounts AS place FROM generate_series(0, :windows - 1) AS i) AS placed
) AS timed;
INSERT INTO usage_days (account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows,
    first_window, last_window_end, next_position)
SELECT account, window_start::date, model, meter, currency, price_version, sum(quantity), max(unit_price), count(*),
       min(window_start), max(window_end), 2
FROM usage_windows WHERE window_start >= ':month' GROUP BY 1, 2, 3, 4, 5, 6;
ANALYZE;
"""
PROVED = """
INSERT INTO audits (version, finished_at, is_proved, unexpected, billed_to, activity_number)
SELECT 'bench', now(), true, '{}', 2, coalesce(max(number), 0) FROM activity_log
"""


def measured(name: str, done: Callable[[], object]) -> None:
    """Do it, and print its seconds, this process's CPU-seconds, and its memory at most so far."""
    process, started = psutil.Process(), time.perf_counter()
    before = process.cpu_times()
    found = done()
    seconds, after = time.perf_counter() - started, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    typer.echo(f"| {name} | {seconds:.0f} s | {cpu:.0f} CPU-s of this process | {peak:.0f} MiB at most | {found} |")


def main(
    accounts: Annotated[int, typer.Option(help="How many accounts.")] = 10_000,
    windows: Annotated[int, typer.Option(help="How many rows of windows a month.")] = 1_000_000,
    months: Annotated[int, typer.Option(help="How many months are closed.")] = 3,
) -> None:
    """Fill a database of its own, close its months, and check the invoices after the first and the last."""
    with tempfile.TemporaryDirectory() as folder, embedded_database(Path(folder)) as url:
        migrate(url)
        month = FIRST
        with psycopg.connect(url, autocommit=True) as writing:
            fill_catalog(writing, accounts)
            for number in range(months):
                fill_month(writing, month, accounts, windows)
                measured(f"{month:%Y-%m}: close", partial(_closed, url, month))
                writing.execute("ANALYZE invoices, invoice_lines, invoice_events")
                if number in (0, months - 1):
                    measured(f"{month:%Y-%m}: I7", partial(_checked, url, lines_of_usage))
                    measured(f"{month:%Y-%m}: I9", partial(_checked, url, unchanged))
                month = following(month)


def fill_catalog(writing: psycopg.Connection[Any], accounts: int) -> None:
    """Accounts with a plan, their prices, and billing's rules and position; in a database without any of them."""
    writing.execute("SET timezone = 'UTC'; SET work_mem = '64MB'")
    writing.execute(CATALOG.replace(":accounts", str(accounts)).encode())
    config = BillingConfig()
    with writing.transaction():
        declare(writing, config.declared)
        writing.execute("INSERT INTO rules VALUES ('billing', 1, %s)", [Jsonb(config.deciding)])


def fill_month(writing: psycopg.Connection[Any], month: date, accounts: int, windows: int) -> None:
    """Usage of a month in so many rows of `usage_windows`, and the audit that proved it."""
    sized = USAGE.replace(":accounts", str(accounts)).replace(":windows", str(windows))
    writing.execute(sized.replace(":month", str(month)).encode())
    writing.execute(PROVED)


def close_of(url: str, month: date) -> Close:
    """The close of a month whose proof is there, at an instant that does not depend on the clock."""
    at = datetime(month.year, month.month, 28, tzinfo=UTC)
    return Close(url, Terms(CloseConfig(), month, at, "bench"), lambda _: True)


def _closed(url: str, month: date) -> str:
    rows = list(close_of(url, month).run())
    refused = [row["reason"] for row in rows if row["outcome"] == REFUSED]
    return f"{len(rows) - len(refused)} invoices, {len(refused)} refused {refused[:1]}"


def _checked(url: str, check: Callable[..., object]) -> object:
    with psycopg.connect(url, row_factory=dict_row) as reading:
        reading.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reading.execute("SELECT set_config('TimeZone', 'UTC', true)")
        return check(reading)


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    typer.run(main)
