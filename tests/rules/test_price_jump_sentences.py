"""A price that jumps is said with what a usual request would cost, and with what was likely meant."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from catalog.price_jumps import MAX_NAMED, PriceJump, PricesJump

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def jump(
    unit_price: str, other: str = "0.0000025", per: int = 1, unit: str = "token", compared: str = "median"
) -> PriceJump:
    key = ("standard", "gpt-4o", f"{unit}s", "USD", JANUARY)
    return PriceJump(*key, Decimal(unit_price), compared, Decimal(other), unit, per)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            jump("2.500000000000"),
            "2.5 per token: one request of 1,200 tokens costs 3,000 USD; did you mean per: 1000000?",
        ),
        (jump("0.0025"), "0.0025 per token: one request of 1,200 tokens costs 3 USD; did you mean per: 1000?"),
        (
            jump("0.0025", per=1000),
            "2.5 per 1,000 tokens: one request of 1,200 tokens costs 3 USD; did you mean per: 1000000?",
        ),
        (
            jump("0.0000000000025", per=1000000),
            "0.0000025 per 1,000,000 tokens: one request of 1,200 tokens costs 0.000000003 USD; did you mean per: 1?",
        ),
        (jump("0.00025"), "0.00025 per token: one request of 1,200 tokens costs 0.3 USD; did you mean per: 1000?"),
        (jump("90000", per=3), "270000 per 3 tokens: one request of 1,200 tokens costs 108,000,000 USD"),
        (jump("0"), "0 per token: one request of 1,200 tokens costs 0 USD"),
        (
            jump("40", "0.04", unit="request"),
            "40 per request: one request costs 40 USD; did you mean per: 1000?",
        ),
        (jump("7", "0.04", 2, "image"), "14 per 2 images: one request of 1 image costs 7 USD; did you mean per: 1000?"),
    ],
)
def test_a_price_jump_shows_the_cost_of_a_usual_request(found: PriceJump, said: str) -> None:
    assert found.sentence.endswith(f": {said}")


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        ("replaced", "it replaces 0.0000025"),
        ("before", "the price before it is 0.0000025"),
        ("median", "the median of tokens in USD is 0.0000025"),
    ],
)
def test_a_price_jump_names_the_price_and_its_reference(compared: str, said: str) -> None:
    start = f"standard, gpt-4o, tokens, USD, from 2026-01-01T00:00:00Z ({said}): 2.5 per token: "
    assert jump("2.5", compared=compared).sentence.startswith(start)


def test_a_refused_price_jump_explains_how_to_confirm_it() -> None:
    assert str(PricesJump([jump("2.5")])).splitlines()[::2] == [
        "1 price is 100 times or more above or below another:",
        "Nothing is stored. If that is what you mean, add --yes.",
    ]
    many = str(PricesJump([jump("2.5")] * 25)).splitlines()
    assert many[0].startswith("25 prices are 100 times or more")
    assert many[MAX_NAMED + 1] == "and 5 more"
