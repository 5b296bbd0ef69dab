"""Forecasts of a month, and by how much they are off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from metering.forecast import SOONEST, Rate, error_percent, forecast, mean_percent

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_forecast_adds_the_pace_of_the_last_days() -> None:
    end = NOON + timedelta(days=10)
    so_far, rate = Decimal("3.00"), Rate(Decimal("14.00"), NOON - timedelta(days=13))
    assert forecast(so_far, rate, NOON + timedelta(days=1), end) == Decimal("12.00")
    assert forecast(so_far, rate, end, end) == so_far
    assert forecast(so_far, rate, end + timedelta(days=9), end) == so_far
    assert forecast(so_far, None, NOON, end) == so_far


def test_a_forecast_waits_for_an_hour_of_usage() -> None:
    end, rate = NOON + timedelta(days=10), Rate(Decimal(1), NOON)
    assert forecast(Decimal(1), rate, NOON + SOONEST - timedelta(microseconds=1), end) is None
    assert forecast(Decimal(1), rate, NOON + SOONEST, end) == Decimal("240.00")


def test_an_error_is_a_share_of_the_actual_amount() -> None:
    assert error_percent(Decimal(9), Decimal(12)) == Decimal("25.0")
    assert error_percent(Decimal(15), Decimal(12)) == Decimal("25.0")
    assert error_percent(Decimal(-15), Decimal(-12)) == Decimal("25.0")
    assert error_percent(Decimal(1), Decimal(0)) is None


def test_the_mean_of_errors_of_any_size_is_exact() -> None:
    """With Python's own 28 digits it was an error: what a model of 0.000001 a unit can be off by has more of them."""
    found = mean_percent([Decimal("1e40"), Decimal("0.2")])
    assert found is not None
    assert f"{found:f}" == "5" + "0" * 39 + ".1"
    assert mean_percent([]) is None
