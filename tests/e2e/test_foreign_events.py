"""60,000 events of a stranger, sent at once: other models, other proportions, and a bill computed here from nothing."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployment.stack import Stack
from tests.e2e.conftest import weir_at

RECORDS = 60_000
MODELS = ["mistral-7b", "llama-70b", "whisper", "unlisted"]
METERS = ["requests", "input_tokens", "output_tokens", "cached_tokens"]
Key = tuple[str, str, str, str, str]


class Foreign:
    """A generator of its own. `totals` are (quantity, amount) by window start, account, model, meter and currency."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mark = uuid4().hex[:8]
        self.now = datetime.now(UTC)
        # Times lie two or three minutes back: in their windows' grace for some minutes yet.
        self.oldest_seconds = 150
        self.lines: list[str] = []
        self.totals: dict[Key, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
        self.unmetered: Counter[Key] = Counter()
        """Requests that say nothing of a meter; cached tokens are some of the input's, and nobody misses them."""
        self.accounts = {f"kunde-{self.mark}-{n}": ("JPY" if n % 2 else "USD") for n in range(7)}
        self.prices = {
            (model, meter, currency): Decimal(self.rng.randrange(10**9)) / Decimal(10**12)
            for model in MODELS[:-1]
            for meter in METERS
            for currency in ("JPY", "USD")
        }

    def catalog(self) -> str:
        """YAML, as a person writes it."""
        plan = f"tarif-{self.mark}"
        rows = [f"plans:\n  - plan: {plan}\n    name: Tarif", "accounts:"]
        for account, currency in self.accounts.items():
            fields = f"account: {account}, name: Kunde, plan: {plan}, currency: {currency}, timezone: Asia/Tokyo"
            rows.append(f"  - {{{fields}}}")
        rows.append("prices:")
        for (model, meter, currency), price in self.prices.items():
            fields = f"plan: {plan}, model: {model}, meter: {meter}, currency: {currency}, unit_price: {price:f}"
            rows.append(f"  - {{{fields}, effective_from: 2025-06-01T00:00:00+09:00}}")
        return "\n".join(rows) + "\n"

    def write(self, count: int) -> None:
        """So many lines: four in ten calls report once, copies are one in fifty, a line in a hundred is no event."""
        number = 0
        while len(self.lines) < count:
            number += 1
            chance = self.rng.random()
            if chance < 0.01:
                self.lines.append(self.rng.choice(["{", "[]", '{"specversion":"1.0"}', "nonsense"]))
            elif chance < 0.4 or len(self.lines) == count - 1:
                self._call(number, ["usage"])
            else:
                self._call(number, ["request", "completion"])
            if chance > 0.98 and len(self.lines) < count:
                self.lines.append(self.lines[-1])

    def _call(self, number: int, parts: list[str]) -> None:
        account = self.rng.choice(list(self.accounts))
        model = self.rng.choices(MODELS, weights=[5, 2, 2, 1])[0]
        at = self.now - timedelta(milliseconds=self.rng.randrange(self.oldest_seconds * 1000))
        used = {meter: self.rng.choice([None, 0, self.rng.randrange(1, 10**5)]) for meter in METERS[1:]}
        # Cached tokens are some of the input tokens, and are billed as cached wherever they have a price.
        if used["cached_tokens"] and used["input_tokens"] is not None:
            used["cached_tokens"] = self.rng.randrange(used["input_tokens"] + 1)
        asked: dict[str, Any] = {
            "request_id": f"{self.mark}:{number}",
            "model": model,
            "operation": "x",
            "user_id": "u",
        }
        done: dict[str, Any] = {"request_id": f"{self.mark}:{number}", "status": "completed", **used}
        data = {"request": asked, "completion": done, "usage": {**done, **asked}}
        for part in parts:
            self.lines.append(
                json.dumps(
                    {
                        "data": data[part],
                        "time": at.astimezone().isoformat(),
                        "subject": account,
                        "id": f"{number}/{part}",
                        "source": f"//fremd/{self.mark}",
                        "type": f"ai.inference.{part}.v1",
                        "specversion": "1.0",
                        "tenant": "extension",
                    }
                )
            )
        window = at.replace(second=0, microsecond=0).isoformat().replace("+00:00", "Z")
        currency = self.accounts[account]
        for meter, quantity in {"requests": 1, **used}.items():
            if quantity is None and meter != "cached_tokens":
                self.unmetered[window, account, model, meter, currency] += 1
            if quantity:
                total = self.totals[window, account, model, meter, currency]
                total[0] += quantity
                total[1] += quantity * self.prices.get((model, meter, currency), Decimal(0))
        cached = used["cached_tokens"] if used["input_tokens"] else 0
        if cached and (model, "cached_tokens", currency) in self.prices:
            self.totals[window, account, model, "input_tokens", currency][1] -= (
                cached * self.prices[model, "input_tokens", currency]
            )


@pytest.mark.timeout(600)
def test_foreign_events_are_billed_as_computed_by_hand(stack: Stack, tmp_path: Path) -> None:
    catalog, events = tmp_path / "catalog.yaml", tmp_path / "events.jsonl"
    foreign = Foreign(20_260_921)
    catalog.write_text(foreign.catalog())
    applied = weir_at(stack.data_dir, "catalog", "apply", str(catalog), "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    foreign.write(RECORDS)
    events.write_text("\n".join(foreign.lines) + "\n")
    produced = weir_at(stack.data_dir, "produce", str(events), "--format", "json")
    assert produced.returncode == 0, produced.stderr
    assert json.loads(produced.stdout) == {"acknowledged": RECORDS, "refused": []}
    drained = weir_at(stack.data_dir, "drain", "--timeout", "240")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    accounts = [option for account in foreign.accounts for option in ("--account", account)]
    listed = weir_at(stack.data_dir, "usage", "--format", "json", *accounts)
    assert listed.returncode == 0, listed.stderr
    billed = {
        (row["window_start"], row["account"], row["model"], row["meter"], row["currency"]): [
            Decimal(row["quantity"]),
            Decimal(row["amount"]),
            row["unmetered_requests"],
        ]
        for row in json.loads(listed.stdout)
    }
    keys = foreign.totals.keys() | foreign.unmetered.keys()
    assert billed == {key: [*foreign.totals[key], foreign.unmetered[key]] for key in keys}
