"""What `weir explain` prints of usage whose price depends on the total of its month."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from cli.explain.printing import _fee, _line, _window

NOON = datetime(2026, 10, 5, 12, tzinfo=UTC)
PLACE = {"account": "acme", "model": "small-1", "meter": "input_tokens", "currency": "EUR"}


def version(number: int | None, unit_price: str | None, quantity: int) -> dict[str, Any]:
    price = None if unit_price is None else Decimal(unit_price)
    amount = None if price is None else price * quantity
    found = {"price_version": number, "unit_price": price, "quantity": Decimal(quantity), "amount": amount}
    return found | {"contribution": {"quantity": Decimal(quantity), "amount": amount or Decimal(0)}}


def test_usage_that_the_months_total_prices_is_not_said_to_cost_nothing() -> None:
    whole = {"quantity": Decimal(10), "amount": Decimal(6), "unpriced_quantity": Decimal(0)}
    window = PLACE | {"window_start": NOON, "state": "open", **whole, "contribution": whole}
    window["price_versions"] = [version(7, "2", 3), version(8, None, 7)]
    head, of_unit, of_tiers = _window(window)
    assert head == (
        "acme 2026-10-05T12:00:00Z, small-1 input_tokens, open: 10 for 6 EUR, of which 7 priced by the month's total; "
        "of it 10 for 6 EUR"
    )
    assert of_unit == "  3 x 2 = 6 EUR (price version 7); of it 3 for 6 EUR"
    assert of_tiers == "  7 priced by the month's total (price version 8); of it 7"
    (line,) = _line(PLACE | {"month": "2026-10", **version(8, None, 7)})
    assert line == "acme 2026-10, small-1 input_tokens: 7 priced by the month's total (price version 8); of it 7"


def test_usage_without_a_price_is_not_said_to_cost_nothing() -> None:
    whole = {"quantity": Decimal(10), "amount": Decimal(0), "unpriced_quantity": Decimal(10)}
    window = PLACE | {"window_start": NOON, "state": "open", "currency": None, **whole, "contribution": whole}
    head, of_none = _window(window | {"price_versions": [version(None, None, 10)]})
    assert head == ("acme 2026-10-05T12:00:00Z, small-1 input_tokens, open: 10, of which 10 without a price; of it 10")
    assert of_none == "  10 without a price; of it 10"
    (line,) = _line(PLACE | {"month": "2026-10", **version(None, None, 10)})
    assert line == "acme 2026-10, small-1 input_tokens: 10 without a price; of it 10"


def test_a_fee_of_one_day_is_said_to_be_of_one_day() -> None:
    (line,) = _fee({"fee": "flat", "plan": "pro", "days": 1, "amount": Decimal(2), "currency": "EUR"})
    assert line == "flat of plan pro, 1 day: 2 EUR"
