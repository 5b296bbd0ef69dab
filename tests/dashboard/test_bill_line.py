"""What a line of a bill says of its price."""

from __future__ import annotations

from datetime import UTC, datetime

from dashboard.queries.bills import Line
from dashboard.views.bill_line import _price_freshness

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def unpriced(model: str | None) -> Line:
    return Line("acme", model, "input_tokens", "token", None, None, 5, None, NOON, NOON)


def test_a_line_without_a_price_says_that_an_audit_bills_it_once_there_is_one() -> None:
    words = _price_freshness(unpriced("sonnet"), ()).sentence
    assert "Once the catalog has a price for it, the next audit bills it." in words


def test_a_line_without_a_model_promises_no_price() -> None:
    words = _price_freshness(unpriced(None), ()).sentence
    assert "no model and no price" in words
    assert "audit" not in words
