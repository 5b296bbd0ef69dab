"""What providers and gateways report, on a stack of its own: from `weir produce` to what `weir usage` lists, and again
after an audit. Each account is a case of the ten that people meet, but for one that is billed by its users.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deployment.stack import Stack, running_stack
from tests.e2e.conftest import weir_at

USAGE, REQUEST, COMPLETION = (f"ai.inference.{kind}.v1" for kind in ("usage", "request", "completion"))
COUNT = {"type": ["integer", "null"], "minimum": 0}
CONTRACT = {
    "$id": USAGE,
    "allOf": [{"$ref": f"weir:{USAGE}"}],
    "properties": {
        "data": {
            "properties": {
                name: {**COUNT, "x-weir-column": name} for name in ("cache_write_tokens", "reasoning_tokens")
            }
        }
    },
}
CONFIG: dict[str, Any] = {
    "contracts": ["usage.json"],
    "meters": {
        "requests": {"unit": "request", "count": "outcomes", "where": {"status": ["completed"]}},
        "input_tokens": {"unit": "token", "sum": "input_tokens"},
        "output_tokens": {"unit": "token", "sum": "output_tokens"},
        "cached_tokens": {"unit": "token", "sum": "cached_tokens", "within": "input_tokens"},
        "cache_write_tokens": {"unit": "token", "sum": "cache_write_tokens", "within": "input_tokens"},
        "reasoning_tokens": {"unit": "token", "sum": "reasoning_tokens", "within": "output_tokens"},
        "active_users": {"unit": "user", "unique": "user_id", "period": "month", "where": {"status": ["completed"]}},
    },
    "price_attributes": ["operation"],
    "jobs": {
        "ingestion": {
            "max_clock_ahead_seconds": 30,
            "conventions": [{"source": "beside/*", "includes": {}}],
            "reversal": {"sources": ["refunds"]},
        },
        "joins": {"completion_timeout_seconds": 60},
        "billing": {"grace_seconds": 300},
    },
}
MILLION = 1_000_000
INPUT, OUTPUT = {"input_tokens": "3"}, {"output_tokens": "12"}
COMPLETED, FAILED = {"status": "completed"}, {"status": "error"}
PLAIN = {"model": "plain", **COMPLETED}
USED = {"input_tokens": 900, "output_tokens": 80}


class Case:
    """An account: what a million of each unit costs it, what is sent of it, and what its bill must say."""

    def __init__(self, amount: str, quantities: Mapping[str, int], *sent: tuple[str, str, Mapping[str, Any]]) -> None:
        self.amount, self.quantities, self.sent = Decimal(amount), quantities, sent


PRICES: Mapping[str, Mapping[str, str]] = {
    "large": {
        **INPUT,
        **OUTPUT,
        "cached_tokens": "0.3",
        "cache_write_tokens": "4",
        "requests": "10000",
        "active_users": "2500000",
    },
    "plain": {**INPUT, **OUTPUT, "requests": "0", "active_users": "1250000"},
}
"""By model and meter. The plain one gives no tokens a price of their own."""
CASES: Mapping[str, Case] = {
    # 106 fresh ones at 3, 1,900 at 0.3, 300 at 12; and the request.
    "cached": Case(
        "0.014488",
        {"requests": 1, "input_tokens": 2_006, "cached_tokens": 1_900, "output_tokens": 300},
        (USAGE, "r1", {**COMPLETED, "input_tokens": 2_006, "cached_tokens": 1_900, "output_tokens": 300}),
    ),
    # Nothing is part of anything: 100 at 3, 5,000 at 0.3, 700 at 4, 10 at 12.
    "beside": Case(
        "0.01472",
        {
            "requests": 1,
            "input_tokens": 100,
            "cached_tokens": 5_000,
            "cache_write_tokens": 700,
            "output_tokens": 10,
        },
        (
            USAGE,
            "r1",
            {**COMPLETED, "input_tokens": 100, "cached_tokens": 5_000, "cache_write_tokens": 700, "output_tokens": 10},
        ),
    ),
    # The output has the price of reasoning: 17 at 3, 482 at 12.
    "reasoning": Case(
        "0.005835",
        {"requests": 1, "input_tokens": 17, "output_tokens": 482, "reasoning_tokens": 448},
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 17, "output_tokens": 482, "reasoning_tokens": 448},
        ),
    ),
    # It failed twice, once in one record and once in two, and then did not.
    "retry": Case(
        "0.02732",
        {"requests": 2, "input_tokens": 1_800, "output_tokens": 160},
        (USAGE, "r1", FAILED),
        (USAGE, "r1", FAILED),
        (USAGE, "r1", {**COMPLETED, **USED}),
        (REQUEST, "r2", {}),
        (COMPLETION, "r2", FAILED),
        (COMPLETION, "r2", {**COMPLETED, **USED}),
    ),
    "twice": Case(
        "0.01366",
        {"requests": 1, "input_tokens": 900, "output_tokens": 80},
        (USAGE, "r1", {**COMPLETED, **USED}),
        (USAGE, "r1", {**COMPLETED, **USED}),
    ),
    # Half of it, by a price of its own for batches: 1,000 at 1.5, 100 at 6.
    "batch": Case(
        "0.0021",
        {"requests": 1, "input_tokens": 1_000, "output_tokens": 100},
        (
            USAGE,
            "r1",
            {**PLAIN, "operation": "batch", "input_tokens": 1_000, "output_tokens": 100},
        ),
    ),
    # The stream's first count came first; and of two final ones the later is the better.
    "streamed": Case(
        "0.0081",
        {"requests": 2, "input_tokens": 200, "output_tokens": 625},
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 100, "output_tokens": 1, "usage_source": "partial"},
        ),
        (
            USAGE,
            "r1",
            {**PLAIN, "input_tokens": 100, "output_tokens": 500, "usage_source": "provider"},
        ),
        (USAGE, "r2", {**PLAIN, "input_tokens": 100, "output_tokens": 0}),
        (USAGE, "r2", {**PLAIN, "input_tokens": 100, "output_tokens": 125}),
    ),
    # Of three requests one has completed; the tokens of the one that was cancelled were used.
    "failed": Case(
        "0.010498",
        {"requests": 1, "input_tokens": 110, "output_tokens": 14},
        (USAGE, "r1", {**COMPLETED, "input_tokens": 50, "output_tokens": 5}),
        (USAGE, "r2", FAILED),
        (USAGE, "r3", {"status": "cancelled", "input_tokens": 60, "output_tokens": 9}),
    ),
    # It fell back to another model, which answered.
    "fallback": Case(
        "0.00366",
        {"requests": 1, "input_tokens": 900, "output_tokens": 80},
        (REQUEST, "r1", {}),
        (USAGE, "r1", FAILED),
        (USAGE, "r1", {**PLAIN, **USED}),
    ),
    # Ada counts once at 2.5, and Cyd at 1.25 with the model that answered; Bob failed, and Dan is taken back.
    "users": Case(
        "3.77",
        {"requests": 3, "active_users": 2},
        (USAGE, "r1", {**COMPLETED, "user_id": "ada"}),
        (USAGE, "r2", {**COMPLETED, "user_id": "ada"}),
        (USAGE, "r3", {**FAILED, "user_id": "bob"}),
        (REQUEST, "r4", {"user_id": "cyd"}),
        (USAGE, "r4", {**FAILED, "user_id": "cyd"}),
        (USAGE, "r4", {**PLAIN, "user_id": "cyd"}),
        (USAGE, "r5", {**COMPLETED, "user_id": "dan"}),
    ),
}


def config(folder: Path) -> Path:
    (folder / "usage.json").write_text(json.dumps(CONTRACT))
    written = folder / "weir.json"
    written.write_text(json.dumps(CONFIG))
    return written


def catalog() -> str:
    of_plan = {"plan": "usual", "currency": "USD", "effective_from": "2026-01-01T00:00:00Z", "per": MILLION}
    prices: list[dict[str, Any]] = [
        {**of_plan, "model": model, "meter": meter, "unit_price": unit_price}
        for model, unit_prices in PRICES.items()
        for meter, unit_price in unit_prices.items()
    ]
    halves = [
        {**price, "conditions": {"operation": "batch"}, "unit_price": str(Decimal(price["unit_price"]) / 2)}
        for price in prices
        if price["model"] == "plain" and price["meter"] in ("input_tokens", "output_tokens")
    ]
    accounts = [{"account": name, "name": name, "plan": "usual", "currency": "USD"} for name in CASES]
    return json.dumps({"plans": [{"plan": "usual", "name": "usual"}], "accounts": accounts, "prices": prices + halves})


def events() -> Iterator[str]:
    """A line each; what is sent later occurred later."""
    now = datetime.now(UTC)
    for account, case in CASES.items():
        for number, (event_type, request, data) in enumerate(case.sent):
            model = {} if event_type == COMPLETION else {"model": "large"}
            said = {
                "specversion": "1.0",
                "type": event_type,
                "source": f"{'beside' if account == 'beside' else 'inside'}/gateway",
                "id": f"{account}/{number}",
                "subject": account,
                "time": (now - timedelta(seconds=30 - number)).isoformat(),
                "data": {"request_id": f"{account}/{request}", **model, **data},
            }
            yield json.dumps(said) + "\n"


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All of it is sent, decided and billed."""
    folder = tmp_path_factory.mktemp("meant")
    data_dir = folder / "weir"
    (folder / "catalog.json").write_text(catalog())
    (folder / "events.jsonl").write_text("".join(events()))
    try:
        for command in (
            ("up", "--detach", "--config", str(config(folder))),
            ("catalog", "apply", str(folder / "catalog.json"), "--yes"),
            ("produce", str(folder / "events.jsonl")),
            ("drain", "--include-waiting", "--timeout", "240"),
        ):
            ended = weir_at(data_dir, *command)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        yield running_stack(data_dir)
    finally:
        weir_at(data_dir, "down")


def bills(stack: Stack) -> Mapping[str, Any]:
    """By account what it pays, how much has no price, and what each meter has counted."""
    found = weir_at(stack.data_dir, "usage", "--window", "P1M", "--group-by", "account,meter", "--format", "json")
    assert found.returncode == 0, found.stderr
    of: dict[str, tuple[Decimal, Decimal, dict[str, Decimal]]] = {}
    for row in json.loads(found.stdout):
        paid, unpriced, counted = of.get(row["account"], (Decimal(0), Decimal(0), {}))
        quantity = Decimal(row["quantity"])
        of[row["account"]] = (
            paid + Decimal(row["amount"]),
            unpriced + Decimal(row["unpriced_quantity"]),
            counted | ({row["meter"]: quantity} if quantity else {}),
        )
    return of


@pytest.mark.timeout(600)
def test_each_case_is_billed_as_its_provider_means_it(metered: Stack) -> None:
    found = bills(metered)
    expected = {name: (case.amount, Decimal(0), case.quantities) for name, case in CASES.items()}
    # What only an audit knows: the later of two final counts, and that another model answered than was asked.
    first_count = {**CASES["streamed"].quantities, "output_tokens": 500}
    live = {
        "streamed": (Decimal("0.0066"), Decimal(0), first_count),
        "fallback": (Decimal("0.01366"), Decimal(0), CASES["fallback"].quantities),
        # Four requests at 0.01, and Ada, Cyd and Dan at 2.5.
        "users": (Decimal("7.54"), Decimal(0), {"requests": 4, "active_users": 3}),
    }
    assert found == expected | live
    reversed_now = weir_at(metered.data_dir, "usage", "reverse", "users/r5", "--reason", "by mistake")
    assert reversed_now.returncode == 0, reversed_now.stdout + reversed_now.stderr
    assert weir_at(metered.data_dir, "drain", "--timeout", "120").returncode == 0
    audited = weir_at(metered.data_dir, "audit")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert weir_at(metered.data_dir, "drain", "--timeout", "120").returncode == 0
    assert bills(metered) == expected
