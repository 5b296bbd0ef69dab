"""What `bench.dashboard` and `bench.viewers` measure is pages that show something: rows that agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from bench.dashboard_rows import FILL
from dashboard.backend import Backend
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from tests.conftest import fresh_database

WINDOWS = 3_000
_SUMS = """
    SELECT account, model, meter, currency, price_version, sum(quantity) AS quantity, sum(amount) AS amount
    FROM usage_windows GROUP BY 1, 2, 3, 4, 5
"""


@pytest.fixture(scope="module")
def measured(postgres_url: str) -> Iterator[str]:
    with fresh_database(postgres_url) as url:
        with psycopg.connect(url) as connection:
            connection.execute(FILL.replace(":windows", str(WINDOWS)).encode())
        yield url


def test_measured_bills_come_to_the_measured_windows(measured: str) -> None:
    """Else the page of bills is measured while it is empty."""
    backend = Backend(Settings(postgres_url=measured))
    now = datetime.now(UTC)
    # The first minutes may be of the month before, in the calendar of their account.
    months = {(now + timedelta(days=days)).date().replace(day=1) for days in (-1, 0, 1)}
    found: dict[tuple[object, ...], tuple[object, object]] = {}
    for line in [line for month in sorted(months) for line in read_bills(backend, month).lines]:
        key = line.account, line.model, line.meter, line.currency, line.price_version
        quantity, amount = found.get(key, (0, 0))
        found[key] = quantity + line.quantity, amount + (line.amount or 0)  # type: ignore[operator]
    with psycopg.connect(measured) as connection:
        sums = {tuple(row[:5]): (row[5], row[6]) for row in connection.execute(_SUMS.encode())}
    assert found == sums
    assert len({account for account, *_ in sums}) == 50


def test_each_measured_day_is_of_its_accounts_calendar_and_has_all_of_its_windows(measured: str) -> None:
    with psycopg.connect(measured) as connection:
        days = connection.execute("SELECT sum(usage_rows), min(first_window), max(last_window_end) FROM usage_days")
        windows = connection.execute("SELECT count(*), min(window_start), max(window_end) FROM usage_windows")
        assert days.fetchone() == windows.fetchone()
        outside = connection.execute(
            "SELECT count(*) FROM usage_days JOIN catalog.accounts USING (account)"
            " WHERE day <> (first_window AT TIME ZONE timezone)::date"
            " OR day <> ((last_window_end - interval '1 minute') AT TIME ZONE timezone)::date"
        )
        assert outside.fetchone() == (0,)
