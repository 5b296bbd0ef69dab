"""Cases of gateways and providers, from the events to what `weir usage` lists: tokens of all kinds, keys and dates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery
from jobs.queries.usage_keys import Key
from metering.instants import rfc3339
from tests.corpus import RECEIVED_AT
from tests.pipelines.as_billed import Stack, billed, by_meter, listed
from tests.pipelines.hand_made import DAY, HOUR, START, HandMade
from tests.simulation.audits import audit

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
USAGE_TYPE = "ai.inference.usage.v1"
COUNT = {"type": ["integer", "null"], "minimum": 0}
OWN = {
    "$id": USAGE_TYPE,
    "allOf": [{"$ref": f"weir:{USAGE_TYPE}"}],
    "properties": {
        "data": {
            "properties": {
                name: {**COUNT, "x-weir-column": name} for name in ("cache_write_tokens", "reasoning_tokens")
            }
        }
    },
}
METERS = {
    "requests": {"unit": "request", "count": "outcomes"},
    "input_tokens": {"unit": "token", "sum": "input_tokens"},
    "output_tokens": {"unit": "token", "sum": "output_tokens"},
    "cached_tokens": {"unit": "token", "sum": "cached_tokens", "within": "input_tokens"},
}
CACHE_WRITES = {"cache_write_tokens": {"unit": "token", "sum": "cache_write_tokens"}}
REASONING = {"reasoning_tokens": {"unit": "token", "sum": "reasoning_tokens", "within": "output_tokens"}}
ACCOUNT = {"account": "acme", "plan": "pro", "currency": "USD", "timezone": "UTC"}
TERMS: dict[str, Any] = {"account": ACCOUNT, "since": SINCE}
OF_THE_MONTH = UsageQuery(window=Window.MONTH)


def event(
    name: str, model: str, data: Mapping[str, Any], ago: timedelta = timedelta(seconds=20)
) -> tuple[bytes, datetime]:
    """One that a gateway sends once per request, received when tests receive the corpus."""
    said = {"request_id": name, "model": model, "status": "completed", **data}
    envelope = {"specversion": "1.0", "type": USAGE_TYPE, "source": "gateway/1", "id": name, "subject": "acme"}
    return json.dumps({**envelope, "time": rfc3339(RECEIVED_AT - ago), "data": said}).encode(), RECEIVED_AT


def prices(model: str, **unit_prices: str) -> dict[tuple[str, str], str]:
    return {(model, meter): unit_price for meter, unit_price in unit_prices.items()}


def test_each_kind_of_prompt_token_that_is_declared_beside_the_others_has_its_own_price(database: str) -> None:
    """As of providers that report fresh, read and written tokens apart: their source says so."""
    meters = METERS | CACHE_WRITES
    meters["cached_tokens"] = {"unit": "token", "sum": "cached_tokens"}
    tokens = {"input_tokens": 90, "cached_tokens": 6_000, "cache_write_tokens": 800, "output_tokens": 12}
    of_plan = prices(
        "opus",
        input_tokens="0.000003",
        cached_tokens="0.0000003",
        cache_write_tokens="0.00000375",
        output_tokens="0.000015",
        requests="0",
    )
    stack = Stack(meters, contracts=(OWN,), conventions=({"source": "gateway/*", "includes": {}},))
    billed(database, stack, [event("r1", "opus", tokens)], **TERMS, unit_prices=of_plan)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found == {
        "requests": (1, 0, 0),
        **{meter: (n, n * Decimal(of_plan["opus", meter]), 0) for meter, n in tokens.items()},
    }
    assert sum(amount for _, amount, _ in found.values()) == Decimal("0.00525")


def test_cached_tokens_are_billed_at_their_price_and_not_as_input_tokens_too(database: str) -> None:
    """As of providers that report the cached ones as a part of the prompt."""
    of_plan = prices(
        "large", input_tokens="0.000003", cached_tokens="0.0000015", output_tokens="0.000012", requests="0"
    )
    used = event("r1", "large", {"input_tokens": 1_500, "cached_tokens": 1_024, "output_tokens": 200})
    billed(database, Stack(METERS), [used], **TERMS, unit_prices=of_plan)
    rows: dict[Any, Any] = {row["meter"]: row for row in listed(database, OF_THE_MONTH)}
    reported_and_billed = {meter: (row["quantity"], row["billed_quantity"]) for meter, row in rows.items()}
    assert reported_and_billed == {
        "requests": (1, 1),
        "input_tokens": (1_500, 476),
        "cached_tokens": (1_024, 1_024),
        "output_tokens": (200, 200),
    }
    assert {row["unpriced_quantity"] for row in rows.values()} == {0}
    assert sum(row["amount"] for row in rows.values()) == Decimal("0.005364")


def test_tokens_of_reasoning_are_shown_within_the_output_and_billed_once(database: str) -> None:
    stack = Stack(METERS | REASONING, contracts=(OWN,))
    used = event("r1", "nano", {"input_tokens": 20, "output_tokens": 500, "reasoning_tokens": 440})
    of_plan = prices("nano", input_tokens="0.00000005", output_tokens="0.0000004", requests="0")
    billed(database, stack, [used], **TERMS, unit_prices=of_plan)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found["output_tokens"] == (500, Decimal("0.0002"), 0)
    assert found["input_tokens"] == (20, Decimal("0.000001"), 0)
    assert found["reasoning_tokens"] == (440, 0, 0), "the output has their price: they are no money, nor unpriced"


def test_failed_and_cancelled_requests_are_billed_by_meters_that_select_them(database: str) -> None:
    """As of providers that charge a fee for what succeeds, and tokens of whatever ran."""
    meters = METERS | {"requests": {**METERS["requests"], "where": {"status": ["completed"]}}}
    meters["failures"] = {"unit": "failure", "count": "outcomes", "where": {"status": ["error", "cancelled"]}}
    ended: dict[str, Mapping[str, Any]] = {
        "completed": {"input_tokens": 70, "output_tokens": 9},
        "error": {},
        "cancelled": {"input_tokens": 80, "output_tokens": 3},
    }
    events = [event(status, "mini", {**data, "status": status}) for status, data in ended.items()]
    of_plan = prices("mini", requests="0.02", failures="0", input_tokens="0.000003", output_tokens="0.00001")
    billed(database, Stack(meters), events, **TERMS, unit_prices=of_plan)
    assert by_meter(listed(database, OF_THE_MONTH)) == {
        "requests": (1, Decimal("0.02"), 0),
        "failures": (2, 0, 0),
        "input_tokens": (150, Decimal("0.00045"), 0),
        "output_tokens": (12, Decimal("0.00012"), 0),
    }


def test_a_gateway_that_says_no_status_reports_what_was_completed(database: str) -> None:
    """As LiteLLM's integration of OpenMeter: its contract has no such field."""
    meters: dict[str, Any] = {"requests": {**METERS["requests"], "where": {"status": "completed"}}}
    said: dict[str, Any] = {
        "specversion": "1.0",
        "type": "litellm_tokens",
        "source": "litellm",
        "id": "r1",
        "subject": "acme",
    }
    said |= {"time": rfc3339(RECEIVED_AT), "data": {"model": "mini", "prompt_tokens": 5}}
    rows = billed(
        database,
        Stack(meters),
        [(json.dumps(said).encode(), RECEIVED_AT)],
        **TERMS,
        unit_prices=prices("mini", requests="0.02"),
    )
    assert rows[0]["status"] == "completed"
    assert by_meter(listed(database, OF_THE_MONTH)) == {"requests": (1, Decimal("0.02"), 0)}


@pytest.mark.parametrize("window", [Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH])
def test_free_and_unmetered_usage_are_listed(database: str, window: Window) -> None:
    """Whoever reports no part of the input has reported the input: no cached tokens are missing."""
    of_plan = prices("mini", requests="0.02", input_tokens="0")
    events = [event("r1", "mini", {"input_tokens": 100}), event("r2", "mini", {})]
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan)
    names = ("quantity", "billed_quantity", "free_quantity", "amount", "unpriced_quantity", "unmetered_requests")
    found = {row["meter"]: tuple(row[name] for name in names) for row in listed(database, UsageQuery(window=window))}
    assert found == {
        "requests": (2, 2, 0, Decimal("0.04"), 0, 0),
        "input_tokens": (100, 100, 100, 0, 0, 1),
        "output_tokens": (0, 0, 0, 0, 0, 2),
    }


def test_usage_of_a_shared_key_is_split_by_user(database: str) -> None:
    stack = Stack(METERS, dimensions=("api_key_id", "user_id"))
    users: list[Mapping[str, str]] = [{"user_id": "alice"}, {"user_id": "bob"}, {}]
    events = [
        event(f"r{number}", "mini", {"input_tokens": 100, "api_key_id": "key-1", **user})
        for number, user in enumerate(users)
    ]
    billed(database, stack, events, **TERMS, unit_prices=prices("mini", input_tokens="0.01"))
    query = UsageQuery(
        window=Window.DAY, group_by=(Key.ACCOUNT, Key.METER), dimensions=("api_key_id", "user_id"), accounts=("acme",)
    )
    found = {
        (row["api_key_id"], row["user_id"]): (row["quantity"], row["amount"])
        for row in listed(database, query)
        if row["meter"] == "input_tokens"
    }
    assert found == {("key-1", user): (100, 1) for user in ("alice", "bob", None)}


def test_usage_of_a_month_ago_is_billed_in_its_own_minute_and_older_or_future_usage_keeps_its_time(
    database: str,
) -> None:
    ago = {1: timedelta(days=36), 2: timedelta(days=34), 4: -timedelta(hours=1), 8: -timedelta(seconds=200)}
    events = [event(f"r{tokens}", "mini", {"input_tokens": tokens}, at) for tokens, at in ago.items()]
    rows = billed(database, Stack(METERS), events, **TERMS, unit_prices=prices("mini", input_tokens="1"))
    assert [row["reason"] for row in rows] == ["too_old", None, "future", None]
    assert rows[0]["violation"].startswith("accept window /time: at most 35 days")
    assert rows[0]["violation"].endswith("it is 36.0 days; `weir backfill` sends events of the past")
    found = {
        row["window_start"]: row["quantity"]
        for row in listed(database, UsageQuery())
        if row["meter"] == "input_tokens" and row["quantity"]
    }
    minute = {tokens: (RECEIVED_AT - at).replace(second=0, microsecond=0) for tokens, at in ago.items()}
    assert found == {minute[2]: 2, minute[8]: 8}


NAMES = ("gpt-4o", "openai/gpt-4o", "gpt-4o-2024-08-06", "GPT-4o", "azure/my-deployment")


def test_a_model_under_names_without_a_price_is_unpriced_until_prices_with_an_earlier_beginning_and_an_audit(
    tmp_path: Path,
) -> None:
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta(), model=NAMES[0])
    for number, name in enumerate(NAMES):
        world.request(HOUR, name=f"r{number}", model=name)
        world.completion(HOUR, name=f"r{number}")
    world.joined(DAY)
    before: dict[tuple[Any, ...], Decimal] = {(0, NAMES[0], "0.01"): Decimal(100)}
    before |= {(0, name, None): Decimal(100) for name in NAMES[1:]}
    assert world.billed() == before

    world.price(2 * DAY, "0.02", begins=timedelta(), model=NAMES[1])
    world.joined(3 * DAY)
    assert world.billed() == before
    assert audit(world.tables, START + 4 * DAY) is not None
    del before[0, NAMES[1], None]
    assert world.billed() == {**before, (0, NAMES[1], "0.02"): Decimal(100)}


def test_unpriced_usage_is_listed_as_unpriced_in_full(database: str) -> None:
    events = [event(f"r{number}", name, {"input_tokens": 1_000}) for number, name in enumerate(NAMES)]
    of_plan = prices(NAMES[0], input_tokens="0.001", requests="0")
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan)
    rows = [row for row in listed(database, OF_THE_MONTH) if row["meter"] == "input_tokens"]
    found = {row["model"]: (row["quantity"], row["amount"], row["unpriced_quantity"]) for row in rows}
    unpriced: dict[Any, tuple[int, int, int]] = dict.fromkeys(NAMES[1:], (1_000, 0, 1_000))
    assert found == {NAMES[0]: (1_000, 1, 0), **unpriced}
