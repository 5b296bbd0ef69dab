"""The figures above the bills: an account without a forecast is named, and its cost so far is not taken for one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from dashboard.queries.bills import Bills, Line, Period
from dashboard.queries.feed import Feed
from dashboard.queries.invoices import KeyHistory
from dashboard.queries.meters import Meters
from dashboard.views.bill_headlines import headlines
from dashboard.views.bills import Total, totals_of
from dashboard.views.invoice import _sum
from metering.forecast import Rate

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def owed(account: str, amount: str | None, forecast: str | None, currency: str = "EUR") -> Total:
    period = Period(account, account, "UTC", NOON, NOON, None)
    exact = None if amount is None else Decimal(amount)
    return Total(period, currency, exact, 0, 1, 1, 1, None if forecast is None else Decimal(forecast))


def notes(*totals: Total) -> dict[str, tuple[str, str]]:
    return {figure.label: (figure.value, figure.note) for figure in headlines(totals)}


def test_a_forecast_is_the_sum_of_those_of_the_accounts() -> None:
    shown = notes(owed("acme", "3", "30"), owed("globex", "1.5", "12.25"), owed("acme", "9", "90", "USD"))
    assert shown["EUR, month to date"] == ("4.50", "forecast 42.25")
    assert shown["USD, month to date"] == ("9.00", "forecast 90.00")
    assert next(iter(shown)) == "Accounts", "and the largest currency is next"
    assert list(shown)[1] == "USD, month to date"


def test_accounts_without_a_forecast_are_not_counted_as_if_they_had_one() -> None:
    shown = notes(owed("acme", "3", "30"), owed("tiered", "100", None), owed("unpriced", None, None))
    assert shown["EUR, month to date"] == ("103.00", "forecast 30.00, without 1 account")


def test_a_forecast_of_0_is_one() -> None:
    assert notes(owed("credited", "5", "0"))["EUR, month to date"] == ("5.00", "forecast 0.00")


def test_without_any_forecast_the_figure_has_none() -> None:
    assert notes(owed("tiered", "100", None))["EUR, month to date"] == ("100.00", "no forecast yet")


def test_a_forecast_is_in_cents_also_beside_a_month_that_is_billed_as_a_whole() -> None:
    period = Period("acme", "acme", "UTC", NOON, NOON + 10 * DAY, None)
    minutes = Line("acme", "m", "requests", "request", "EUR", 7, 2, Decimal(2), NOON, NOON + DAY)
    seats = replace(minutes, meter="seats", quantity=1, amount=Decimal("0.123456789"), whole_period="month")
    feed = Feed(NOON + DAY, "billing", None, None, NOON + DAY, None, None)
    rates: dict[tuple[str, str | None], Rate] = {("acme", "EUR"): Rate(Decimal(2), NOON)}
    bills = Bills(feed, NOON.date(), {"acme": period}, (minutes, seats), Meters((), frozenset()), None, rates)
    (total,) = totals_of(bills)
    assert total.amount == Decimal("2.123456789")
    assert str(total.forecast) == "20.12"


def test_a_fee_of_one_day_is_said_to_be_of_one_day() -> None:
    fee = Line("acme", None, None, "day", "EUR", None, 1, Decimal(2), NOON, NOON, kind="flat", tier="pro")
    assert "It is now 2.00 EUR for 1 day:" in _sum(KeyHistory((), fee), "EUR")
