"""Meters and dimensions that a user declares: billed as anybody would compute it, by meter, by key and by day.

Versions 1 and 2, LiteLLM's shape, a decimal meter and a whole one come side by side; then the declaration changes.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest

from deployment.stack import Stack, running_stack
from laptop.launch import START_LIMIT_SECONDS
from tests.e2e.conftest import weir_at

GPU = {
    "$id": "ai.inference.completion.v1",
    "allOf": [{"$ref": "weir:ai.inference.completion.v1"}],
    "properties": {
        "data": {
            "properties": {
                "gpu_seconds": {"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds"},
                "images": {"type": "integer", "minimum": 0, "x-weir-column": "images"},
            }
        }
    },
}
METERS = {
    "requests": {"unit": "request", "count": "outcomes"},
    "input_tokens": {"unit": "token", "sum": "input_tokens"},
    "output_tokens": {"unit": "token", "sum": "output_tokens"},
    "reasoning_tokens": {"unit": "token", "sum": "reasoning_tokens", "within": "output_tokens"},
    "gpu_seconds": {"unit": "second", "sum": "gpu_seconds", "late_policy": "correct", "max_per_event": "86400"},
    "images": {"unit": "image", "sum": "images"},
}
ZONES = {"utc": "UTC", "tokyo": "Asia/Tokyo"}
PRICES = {meter: Decimal(number * 10**9 + 7) / 10**12 for number, meter in enumerate(METERS, start=1)}
CALLS = 400
Totals = Mapping[tuple[Any, ...], tuple[Decimal, Decimal]]


def start(data_dir: Path, meters: Mapping[str, Any], dimensions: list[str]) -> Any:
    folder = data_dir.parent
    (folder / "gpu.json").write_text(json.dumps(GPU))
    config = {
        "contracts": ["gpu.json"],
        "meters": meters,
        "dimensions": dimensions,
        "jobs": {"joins": {"completion_timeout_seconds": 120}, "billing": {"grace_seconds": 120}},
    }
    (folder / "weir.json").write_text(json.dumps(config))
    return weir_at(data_dir, "up", "--detach", "--config", str(folder / "weir.json"))


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data_dir = tmp_path_factory.mktemp("declared") / "weir"
    try:
        started = start(data_dir, METERS, ["api_key_id"])
        assert started.returncode == 0, started.stdout + started.stderr
        yield running_stack(data_dir)
    finally:
        weir_at(data_dir, "down")


class Calls:
    """Random calls, and their quantities and amounts by the declared meters, computed here in Python's decimals.

    Reasoning is part of the output, and is billed at its own price where it is metered.
    """

    def __init__(self, seed: int, meters: Iterable[str] = METERS) -> None:
        self.rng = random.Random(seed)
        self.meters = frozenset(meters)
        self.mark = uuid4().hex[:8]
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.lines: list[str] = []
        self.quantities: list[tuple[datetime, str, str | None, str, Decimal, Decimal]] = []
        """When, zone, key and meter of what is reported, how much, and how much of it the meter bills."""

    def account(self, zone: str) -> str:
        return f"{zone}-{self.mark}"

    def catalog(self, meters: Iterable[str]) -> str:
        accounts = [
            {"account": self.account(name), "name": name, "plan": self.mark, "currency": "EUR", "timezone": zone}
            for name, zone in ZONES.items()
        ]
        prices = [
            {"plan": self.mark, "model": "m", "meter": meter, "unit_price": f"{PRICES[meter]:f}", "currency": "EUR"}
            | {"effective_from": "2025-01-01T00:00:00Z"}
            for meter in meters
        ]
        return json.dumps({"plans": [{"plan": self.mark, "name": "p"}], "accounts": accounts, "prices": prices})

    def make(self, count: int) -> None:
        for number in range(count):
            zone, shape = self.rng.choice(list(ZONES)), self.rng.choice(["v1", "v1", "v2", "litellm"])
            at = self.now - timedelta(seconds=self.rng.randint(0, 40 * 3_600))
            key = self.rng.choice(["key-1", "key-2", 'key "3"', None]) if shape != "litellm" else None
            used = self.event(f"{self.mark}:{number}", shape, self.account(zone), at, key)
            reasoning = used.get("reasoning_tokens", Decimal(0)) if "reasoning_tokens" in self.meters else Decimal(0)
            for meter, quantity in {"requests": Decimal(1), **used}.items():
                billed = quantity - reasoning if meter == "output_tokens" else quantity
                self.quantities.append((at, zone, key, meter, quantity, billed))

    def event(self, name: str, shape: str, account: str, at: datetime, key: str | None) -> dict[str, Decimal]:
        tokens = {"input_tokens": self.rng.randint(0, 9_000), "output_tokens": self.rng.randint(1, 900)}
        envelope = {"specversion": "1.0", "subject": account, "time": at.isoformat(), "source": f"test/{self.mark}"}
        asked = {"request_id": name, "model": "m"} | ({} if key is None else {"api_key_id": key})
        used: dict[str, Any] = dict(tokens)
        if shape == "litellm":
            data = {"model": "m", "prompt_tokens": tokens["input_tokens"], "completion_tokens": tokens["output_tokens"]}
            self.lines.append(json.dumps({**envelope, "type": "litellm_tokens", "id": name, "data": data}))
            return {meter: Decimal(quantity) for meter, quantity in used.items()}
        self.lines.append(json.dumps({**envelope, "type": "ai.inference.request.v1", "id": f"{name}/q", "data": asked}))
        done: dict[str, Any] = {"request_id": name, "status": "completed"}
        if shape == "v2":
            used["reasoning_tokens"] = self.rng.randint(0, tokens["output_tokens"])
            said = {"input": "input_tokens", "output": "output_tokens", "reasoning": "reasoning_tokens"}
            done["usage"] = {short: used[meter] for short, meter in said.items()}
        else:
            done |= tokens
            if self.rng.random() < 0.7:
                used["gpu_seconds"] = Decimal(self.rng.randint(1, 86_400 * 10**6)) / 10**6
                done["gpu_seconds"] = "@gpu_seconds@"
            if self.rng.random() < 0.4:
                used["images"] = done["images"] = self.rng.randint(0, 12)
        completion = {**envelope, "type": f"ai.inference.completion.{shape}", "id": f"{name}/c", "data": done}
        # A decimal is written as it is: a binary float might have another last digit.
        self.lines.append(json.dumps(completion).replace('"@gpu_seconds@"', f"{used.get('gpu_seconds', 0):f}"))
        return {meter: Decimal(quantity) for meter, quantity in used.items()}

    def totals(self, *keys: str) -> Totals:
        """(quantity, amount) by the values of `keys`, where they are not zero."""
        found: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
        for at, zone, key, meter, quantity, billed in self.quantities:
            midnight = at.astimezone(ZoneInfo(ZONES[zone])).replace(hour=0, minute=0, second=0)
            of = {
                "minute": said(at.replace(second=0)),
                "day": said(midnight.astimezone(UTC)),
                "account": self.account(zone),
                "api_key_id": key,
                "meter": meter,
            }
            sums = found[(*(of[name] for name in keys), meter)]
            sums[0] += quantity
            sums[1] += billed * PRICES[meter]
        return {of: (total, amount) for of, (total, amount) in found.items() if total}


def said(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def listed(stack: Stack, calls: Calls, *arguments: str) -> list[dict[str, Any]]:
    accounts = [option for zone in ZONES for option in ("--account", calls.account(zone))]
    found = weir_at(stack.data_dir, "usage", "--format", "json", *accounts, *arguments)
    assert found.returncode == 0, found.stderr
    rows: list[dict[str, Any]] = json.loads(found.stdout)
    return rows


def by(rows: list[dict[str, Any]], *keys: str) -> Totals:
    return {
        (*(row[name] for name in keys), row["meter"]): (Decimal(row["quantity"]), Decimal(row["amount"]))
        for row in rows
    }


def send(stack: Stack, calls: Calls, folder: Path) -> None:
    (folder / "events.jsonl").write_text("\n".join(calls.lines) + "\n")
    produced = weir_at(stack.data_dir, "produce", str(folder / "events.jsonl"))
    assert produced.returncode == 0, produced.stderr
    drained = weir_at(stack.data_dir, "drain", "--timeout", "240")
    assert drained.returncode == 0, drained.stdout + drained.stderr


def apply(stack: Stack, content: str, folder: Path) -> Any:
    (folder / "catalog.json").write_text(content)
    return weir_at(stack.data_dir, "catalog", "apply", str(folder / "catalog.json"), "--yes")


@pytest.fixture(scope="module")
def calls(declared: Stack, tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Sent and billed."""
    made, folder = Calls(20_261_123), tmp_path_factory.mktemp("calls")
    applied = apply(declared, made.catalog(METERS), folder)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    made.make(CALLS)
    send(declared, made, folder)
    return made


@pytest.mark.timeout(600)
@pytest.mark.long
def test_every_meter_is_billed_to_the_last_digit_by_minute(declared: Stack, calls: Calls) -> None:
    rows = listed(declared, calls)
    assert by(rows, "window_start", "account") == calls.totals("minute", "account")
    assert {row["unpriced_quantity"] for row in rows} == {"0"}
    assert {row["meter"] for row in rows} == set(METERS)


@pytest.mark.long
def test_every_key_is_billed_to_the_last_digit_by_its_accounts_day(declared: Stack, calls: Calls) -> None:
    rows = listed(declared, calls, "--group-by", "account,api_key_id,meter", "--window", "P1D")
    assert by(rows, "window_start", "account", "api_key_id") == calls.totals("day", "account", "api_key_id")
    whole = listed(declared, calls, "--group-by", "api_key_id,meter", "--window", "P1M")
    amounts: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
    for row in whole:
        amounts[row["api_key_id"], row["meter"]] += Decimal(row["amount"])
    assert amounts == {of: amount for of, (_, amount) in calls.totals("api_key_id").items()}


@pytest.mark.long
def test_windows_days_and_usage_are_the_same_sums(declared: Stack, calls: Calls) -> None:
    sums = "SELECT account, meter, price_version, sum(quantity), sum(amount) FROM {} GROUP BY 1, 2, 3"
    sums += " HAVING sum(quantity) <> 0 ORDER BY 1, 2, 3"
    with psycopg.connect(declared.postgres_url) as connection:
        assert connection.execute(sums.format("usage_days")).fetchall()
        days, windows = (connection.execute(sums.format(table)).fetchall() for table in ("usage_days", "usage_windows"))
    assert days == windows


@pytest.mark.long
def test_a_price_of_a_meter_that_is_not_declared_is_refused(declared: Stack, calls: Calls, tmp_path: Path) -> None:
    content = json.loads(calls.catalog({}))
    price = {"plan": calls.mark, "model": "m", "meter": "audio_minutes", "unit_price": "1", "currency": "EUR"}
    content["prices"] = [{**price, "effective_from": "2025-01-01T00:00:00Z"}]
    refused = apply(declared, json.dumps(content), tmp_path)
    assert refused.returncode == 1
    assert "prices.0.meter is 'audio_minutes': must be one of gpu_seconds, images," in refused.stderr


@pytest.mark.timeout(600)
@pytest.mark.long
def test_removed_meters_keep_their_history_and_new_ones_count_from_their_start(
    declared: Stack, calls: Calls, tmp_path: Path
) -> None:
    before = by(listed(declared, calls), "window_start", "account")
    assert weir_at(declared.data_dir, "down").returncode == 0
    other = {name: meter for name, meter in METERS.items() if name not in ("images", "reasoning_tokens")}
    other["answers"] = {"unit": "answer", "count": "outcomes"}
    started = start(declared.data_dir, other, [])
    assert started.returncode == 0, started.stdout + started.stderr
    assert by(listed(declared, calls), "window_start", "account") == before
    stack, later = running_stack(declared.data_dir), Calls(7, other)
    applied = apply(stack, later.catalog(name for name in METERS if name in other), tmp_path)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    later.make(40)
    send(stack, later, tmp_path)
    rows = listed(stack, later)
    answers = [row for row in rows if row["meter"] == "answers"]
    assert (sum(Decimal(row["quantity"]) for row in answers), {row["amount"] for row in answers}) == (40, {"0"})
    told = by([row for row in rows if row["meter"] != "answers"], "window_start", "account")
    wanted = later.totals("minute", "account")
    assert told == {of: total for of, total in wanted.items() if of[-1] in other}
    assert by(listed(stack, calls), "window_start", "account") == before


@pytest.mark.timeout(600)
@pytest.mark.long
def test_the_meaning_of_a_meter_name_cannot_change(declared: Stack, calls: Calls) -> None:
    assert weir_at(declared.data_dir, "down").returncode == 0
    began = time.monotonic()
    started = start(declared.data_dir, {**METERS, "gpu_seconds": {"unit": "second", "sum": "images"}}, [])
    assert started.returncode != 0
    is_said = "meter gpu_seconds is declared as the sum of images in the unit second, but it was the sum of gpu_s"
    assert is_said in started.stderr
    assert time.monotonic() - began < START_LIMIT_SECONDS, "it did not wait for what cannot start"
