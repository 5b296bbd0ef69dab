"""Bug reports of people who meter AI traffic: their events, their prices, and the amounts that they say, to the digit.

Each goes through the code of ingestion, joins and the audit. `tests/e2e/test_what_providers_mean` has them on a stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from catalog.file import CatalogFileError, parse_catalog
from metering.price_models import PricedModel
from tests.pipelines.as_billed import Stack
from tests.pipelines.hand_made import DAY, HOUR, MINUTE
from tests.pipelines.sent import COMPLETION, REQUEST, Prices, Sent
from tests.pipelines.test_audit_restated import audited

SECOND = timedelta(seconds=1)
FREE = {("*", "requests"): "0"}
GPT: Prices = {
    **FREE,
    ("gpt-4o", "input_tokens"): "2.5",
    ("gpt-4o", "cached_tokens"): "1.25",
    ("gpt-4o", "output_tokens"): "10",
}
Data = Mapping[str, Any]


def called(name: str = "r1", model: str = "gpt-4o", **said: Any) -> Data:
    """What a gateway says of a call."""
    return {"request_id": name, "model": model, "status": "completed", **said}


def live_and_audited(sent: Sent, at: timedelta = DAY + HOUR) -> tuple[Decimal, Decimal]:
    """What all of it costs before an audit and after it; another audit changes nothing."""
    sent.joined(at)
    live = sent.amount
    audited(sent, at + HOUR, sent.present)
    sent.joined(at + HOUR)
    assert audited(sent, at + 2 * HOUR, sent.present) == 0
    return live, sent.amount


def test_of_2006_tokens_of_which_1920_were_cached_the_cached_ones_are_paid_once(tmp_path: Path) -> None:
    """0.010415 is what whoever takes both numbers as they are pays."""
    used = called(input_tokens=2_006, cached_tokens=1_920, output_tokens=300)
    amounts = []
    for knows in (True, False):
        sent = Sent(tmp_path / f"{knows}", Stack(), GPT, shipped_conventions=knows)
        assert sent.send(DAY, used) is None
        amounts.append(live_and_audited(sent))
    once, twice = Decimal("0.005615"), Decimal("0.010415")
    assert amounts == [(once, once), (twice, twice)]


def test_fresh_read_and_written_tokens_that_are_counted_apart_cost_0_004575(tmp_path: Path) -> None:
    stack = Stack(conventions=({"source": "anthropic/*", "includes": {}},))
    prices = {("claude-x", name): price for name, price in (("input_tokens", "3"), ("cached_tokens", "0.3"))}
    prices |= {("claude-x", "cache_write_tokens"): "3.75", ("claude-x", "output_tokens"): "15", **FREE}
    sent = Sent(tmp_path, stack, prices)
    counts: dict[str, Any] = {
        "input_tokens": 100,
        "cached_tokens": 5_000,
        "cache_write_tokens": 700,
        "output_tokens": 10,
    }
    assert sent.send(DAY, called(model="claude-x", **counts), source="anthropic/1") is None
    assert live_and_audited(sent) == (Decimal("0.004575"), Decimal("0.004575"))
    parts = {"input_tokens": "0.0003", "cached_tokens": "0.0015", "cache_write_tokens": "0.002625"}
    expected = {**{name: (counts[name], Decimal(amount)) for name, amount in parts.items()}, "requests": (1, 0)}
    assert sent.bill() == {**expected, "output_tokens": (10, Decimal("0.00015"))}


def test_482_tokens_of_output_of_which_448_were_reasoning_cost_0_0001928(tmp_path: Path) -> None:
    prices = {("gpt-5-nano", "input_tokens"): "0.05", ("gpt-5-nano", "output_tokens"): "0.4", **FREE}
    sent = Sent(tmp_path, Stack(), prices)
    sent.send(DAY, called(model="gpt-5-nano", input_tokens=17, output_tokens=482, reasoning_tokens=448))
    live_and_audited(sent)
    assert sent.bill() == {
        "requests": (1, 0),
        "input_tokens": (17, Decimal("0.00000085")),
        "output_tokens": (482, Decimal("0.0001928")),
        "reasoning_tokens": (448, 0),
    }
    assert sent.unpriced == {}, "reasoning is shown; the output bills it"


def test_two_calls_that_failed_and_then_completed_cost_0_007_and_never_0(tmp_path: Path) -> None:
    sent, done = Sent(tmp_path, Stack(), GPT), {"input_tokens": 1_000, "output_tokens": 100}
    for number, status in enumerate(("error", "error", "completed")):
        counts = done if status == "completed" else {}
        sent.send(DAY + number * 5 * SECOND, {**called(), "status": status, **counts})
    sent.send(DAY, {"request_id": "r2", "model": "gpt-4o"}, kind=REQUEST)
    sent.send(DAY + 5 * SECOND, {"request_id": "r2", "status": "error"}, kind=COMPLETION)
    sent.send(DAY + 10 * SECOND, {"request_id": "r2", "status": "completed", **done}, kind=COMPLETION)
    assert live_and_audited(sent) == (Decimal("0.007"), Decimal("0.007"))
    assert {meter: units for meter, (units, _) in sent.bill().items()} == {
        "requests": 2,
        "input_tokens": 2_000,
        "output_tokens": 200,
    }


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("apart", [20 * SECOND, HOUR], ids=str)
def test_one_call_that_was_logged_twice_costs_0_0043025_once(tmp_path: Path, apart: timedelta) -> None:
    sent = Sent(tmp_path, Stack(), GPT)
    for number in range(2):
        sent.send(DAY + number * apart, called(input_tokens=121, output_tokens=400), name=f"e{number}")
        sent.joined(DAY + number * apart + SECOND)
    assert live_and_audited(sent, DAY + 2 * HOUR)[1] == Decimal("0.0043025")


def test_a_batch_costs_0_00175_instead_of_0_0035(tmp_path: Path) -> None:
    stack, batch = Stack(price_attributes=("operation",)), PricedModel.of("gpt-4o", {"operation": "batch"}).text
    halves = {(batch, "input_tokens"): "1.25", (batch, "cached_tokens"): "0.625", (batch, "output_tokens"): "5"}
    amounts = {}
    for operation in ("batch", "chat"):
        sent = Sent(tmp_path / operation, stack, {**GPT, **halves})
        sent.send(DAY, called(operation=operation, input_tokens=1_000, output_tokens=100))
        amounts[operation] = live_and_audited(sent)
    assert amounts == {
        "batch": (Decimal("0.00175"), Decimal("0.00175")),
        "chat": (Decimal("0.0035"), Decimal("0.0035")),
    }


def test_prices_per_million_are_taken_exactly_and_wrong_ones_refused_each_with_its_line() -> None:
    key = 'model: gpt-4o, meter: input_tokens, currency: USD, effective_from: "2026-01-01T00:00:00Z"'
    for written in ("unit_price: 2.50, per: 1000000", "unit_price: 2.5e-06", 'unit_price: "0.0000025"'):
        (price,) = parse_catalog(f"prices: [{{plan: p18, {key}, {written}}}]").rows("prices")
        assert f"{price.model_dump()['unit_price']:f}" == "0.000002500000", written
    wrong = """
plans: [{plan: p18, name: P}]
prices:
  - {plan: p18, model: m, meter: input_tokens, unit_price: "$2.50", currency: USD, effective_from: 2026-01-01T00:00:00Z}
  - {plan: p18, model: m, meter: output_tokens, unit_price: "0,00001", currency: usd, effective_from: 2026-01-01}
"""
    with pytest.raises(CatalogFileError) as refused:
        parse_catalog(wrong)
    found = str(refused.value).splitlines()
    for field in ("0.unit_price", "1.unit_price", "1.currency", "1.effective_from"):
        assert [line for line in found if f"prices.{field} " in line], (field, found)
    with pytest.raises(CatalogFileError, match="gpt-4o is not a known field: a catalog holds plans, accounts, prices"):
        parse_catalog("gpt-4o: {input_cost_per_token: 2.5e-06, output_cost_per_token: 1e-05, mode: chat}")


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
def test_the_providers_500_tokens_bill_where_the_beginning_of_the_stream_said_1(
    tmp_path: Path, *, is_turned: bool
) -> None:
    sent = Sent(tmp_path, Stack(), GPT)
    counts = [("partial", 1, DAY), ("provider", 500, DAY + 6 * SECOND)]
    for source, tokens, at in counts[::-1] if is_turned else counts:
        said = called(input_tokens=100, output_tokens=tokens, usage_source=source)
        sent.send(DAY + MINUTE, said, occurred=at)
    assert live_and_audited(sent) == (Decimal("0.00525"), Decimal("0.00525"))


def test_of_two_counts_of_one_source_0_and_250_one_bills_and_the_other_is_superseded(tmp_path: Path) -> None:
    sent = Sent(tmp_path, Stack(), GPT)
    for tokens, at in ((0, DAY), (250, DAY + 6 * SECOND)):
        sent.send(at, called(input_tokens=100, output_tokens=tokens))
        sent.joined(at + SECOND)
    assert live_and_audited(sent) == (Decimal("0.00025"), Decimal("0.00275"))
    assert sent.outcomes == {"matched": 1, "superseded": 1}


def test_of_completed_failed_and_cancelled_requests_1_costs_0_01(tmp_path: Path) -> None:
    meters = {
        "requests": {"unit": "request", "count": "outcomes", "where": {"status": ["completed"]}},
        "input_tokens": {"unit": "token", "sum": "input_tokens"},
        "output_tokens": {"unit": "token", "sum": "output_tokens"},
    }
    prices = {("gpt-4o", "input_tokens"): "2.5", ("gpt-4o", "output_tokens"): "10", ("gpt-4o", "requests"): "10000"}
    sent = Sent(tmp_path, Stack(meters), prices)
    sent.send(DAY, called("r1", input_tokens=50, output_tokens=5))
    sent.send(DAY, {**called("r2"), "status": "error"})
    sent.send(DAY, {**called("r3", input_tokens=60, output_tokens=7), "status": "cancelled"})
    live_and_audited(sent)
    assert sent.bill() == {
        "requests": (1, Decimal("0.01")),
        "input_tokens": (110, Decimal("0.000275")),
        "output_tokens": (12, Decimal("0.00012")),
    }
