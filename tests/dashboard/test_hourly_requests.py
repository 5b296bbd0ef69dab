"""Requests by the hour beside the bills: the sums of windows, of the last day alone, by account and currency."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta

import pytest

from dashboard.backend import Backend
from dashboard.queries.hourly_requests import HOURS, MAX_SPARKLINES, NONE, read_hourly_requests
from dashboard.settings import Settings
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.test_pages import this_minute
from tests.database_rows import MINUTE, progress, window, write_windows

HOUR = timedelta(hours=1)


@pytest.fixture
def newest() -> datetime:
    """The beginning of the hour that runs."""
    return this_minute().replace(minute=0)


def test_oracle_each_hour_is_the_sum_of_its_minutes_of_requests(
    connected: str, database: str, newest: datetime
) -> None:
    chance = random.Random(36)
    oldest = newest - (HOURS - 1) * HOUR
    expected: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0] * HOURS)
    rows = {}
    for _ in range(400):
        account, currency = chance.choice("abc"), chance.choice(("EUR", "USD", None))
        meter, model = chance.choice(("requests", "input_tokens")), chance.choice(("m1", "m2"))
        start, quantity = oldest - 2 * HOUR + chance.randrange((HOURS + 4) * 60) * MINUTE, chance.randint(1, 10**6)
        key = (account, currency, meter, model, start)
        if key in rows:
            continue
        priced = {} if currency else {"price_version": None, "unit_price": None}
        rows[key] = window(start, quantity, account=account, currency=currency, meter=meter, model=model, **priced)
        if meter == "requests" and oldest <= start < newest + HOUR:
            expected[account, currency][(start - oldest) // HOUR] += quantity
    edges = {oldest - MINUTE: 0, oldest: 1, newest + HOUR - MINUTE: 1, newest + HOUR: 0}
    write_windows(database, *rows.values(), *(window(at, 5, account="edge") for at in edges))
    found = read_hourly_requests(Backend(Settings(postgres_url=connected)), newest + 59 * MINUTE)
    edge = found.days["edge", "EUR"]
    assert (edge.total, edge.by_hour) == (10, (5.0, *[0.0] * (HOURS - 2), 5.0))
    days = {key: list(day.by_hour) for key, day in found.days.items() if key[0] != "edge"}
    assert days == expected
    assert {key: day.total for key, day in found.days.items() if key[0] != "edge"} == {
        key: sum(by_hour) for key, by_hour in expected.items()
    }
    assert found.of("nobody", "EUR") == NONE


@pytest.mark.parametrize("more", [0, 1])
def test_of_too_many_accounts_those_with_the_most_requests_are_shown_and_no_other_is_said_to_have_none(
    connected: str, database: str, newest: datetime, more: int
) -> None:
    rows = [window(newest, 1 + number, account=f"a{number}") for number in range(MAX_SPARKLINES + more)]
    write_windows(database, *rows)
    found = read_hourly_requests(Backend(Settings(postgres_url=connected)), newest)
    assert (len(found.days), found.is_cut) == (MAX_SPARKLINES, bool(more))
    fewest = found.of("a0", "EUR")
    assert fewest is None if more else fewest is not None and fewest.total == 1
    assert found.of("nobody", "EUR") == (None if more else NONE)


def test_a_bill_of_the_month_that_runs_shows_the_last_day_as_a_number_and_a_shape(
    open_page: Pages, connected: str, database: str
) -> None:
    minute = this_minute()
    progress(database, "billing", minute + MINUTE)
    month = minute.replace(day=1, hour=0)
    before = month - 5 * 24 * HOUR
    write_windows(database, window(minute, 3), window(minute, 40, meter="input_tokens"), window(before, 9))
    page = open_page("bills")
    table = page.dataframe[0].value
    assert table["requests, 24 h"].tolist() == [3]
    [shape] = table["by hour, 24 h"].tolist()
    assert list(shape) == [*[0.0] * (HOURS - 1), 3.0]
    assert f"in the 24 hours up to {minute.replace(minute=0) + HOUR:%Y-%m-%d %H:%M} UTC" in texts(page)
    past = open_page("bills", month=f"{before:%Y-%m}")
    assert past.dataframe[0].value["requests"].tolist() == [9]
    assert not [label for label in past.dataframe[0].value if "24 h" in label]
    assert "by hour" not in texts(past).lower()
