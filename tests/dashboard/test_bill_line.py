"""What a line of a bill says of its price."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from dashboard.queries.bills import Line
from dashboard.views.bill_line import _price_freshness, _windows_freshness
from dashboard.views.bills import _forecast
from metering.forecast import Rate

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def unpriced(model: str | None) -> Line:
    return Line("acme", model, "input_tokens", "token", None, None, 5, None, NOON, NOON)


def test_an_unpriced_line_explains_that_an_audit_bills_it_later() -> None:
    words = _price_freshness(unpriced("sonnet"), ()).sentence
    assert "Once the catalog has a price for it, the next audit bills it." in words


def test_a_line_without_a_model_promises_no_price() -> None:
    words = _price_freshness(unpriced(None), ()).sentence
    assert "no model and no price" in words
    assert "audit" not in words


def priced(amount: int, whole_period: str | None = None) -> Line:
    start = NOON if whole_period is None else NOON - timedelta(hours=12)
    return Line("acme", "m", "users", "user", "EUR", 7, 5, Decimal(amount), start, start, whole_period)


def test_a_line_of_a_period_meter_explains_that_it_has_no_minutes() -> None:
    assert "Each month is billed as a whole" in _windows_freshness(priced(1, "month"), ()).sentence
    assert "This line has no windows any more" in _windows_freshness(priced(1), ()).sentence


def test_a_month_that_is_billed_as_a_whole_has_no_pace() -> None:
    known_until, end = NOON + timedelta(days=1), NOON + timedelta(days=10)
    rate = Rate(Decimal(3), NOON)
    assert _forecast([priced(3), priced(4, "month")], rate, known_until, end) == 34
    assert _forecast([priced(3), priced(4, "day")], rate, known_until, end) == 34
    assert _forecast([priced(4, "month")], None, known_until, end) == 4


def test_a_month_with_tiers_has_no_forecast_before_its_end() -> None:
    known_until, end = NOON + timedelta(days=1), NOON + timedelta(days=10)
    tiered = replace(priced(3), tier="1: up to 1000")
    assert _forecast([priced(3), tiered], Rate(Decimal(3), NOON), known_until, end) is None
    assert _forecast([priced(3), tiered], Rate(Decimal(3), NOON), end, end) == 6
