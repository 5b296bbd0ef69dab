"""A catalog made from the seed: plans, accounts in two currencies and several zones, prices with ten decimals.

Prices change within the hour, one is announced for later, and one account in eight changes its plan. The file is
applied in two steps, because an account is one row: the second step carries the changed plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any

from traffic.instants import rfc3339

METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens")
CURRENCIES = ("USD", "EUR")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Chatham")
PLANS = ("starter", "team", "enterprise")
FAMILIES = ("aurora", "basalt", "cirrus", "delphi", "ember", "fjord")
SIZES = ("nano", "small", "base", "large", "max")
UNPRICED_MODEL = "aurora-preview"
HOT_MODELS = ("aurora-nano", "basalt-small")
"""Their prices change while the traffic's own minutes pass."""

LONG_AGO_MS = 1_577_836_800_000  # 2020-01-01
CHANGE_BEFORE_MS = 2_000_000
HOT_CHANGE_BEFORE_MS = 60_000
ANNOUNCED_AFTER_MS = 7_200_000


@dataclass(frozen=True)
class Account:
    """A customer. `plans` are (effective_from_ms, plan), oldest first; the first holds from the beginning of time."""

    account: str
    name: str
    currency: str
    timezone: str
    plans: tuple[tuple[int, str], ...]

    def plan_at(self, event_ms: int) -> str:
        """The plan in force at an event."""
        return next((plan for since, plan in reversed(self.plans) if since <= event_ms), self.plans[0][1])


@dataclass(frozen=True)
class Price:
    """What one unit costs from `effective_from_ms` until the next price of the same key."""

    plan: str
    model: str
    meter: str
    currency: str
    effective_from_ms: int
    unit_price: Decimal


class Catalog:
    """Accounts and prices, and what is in force when."""

    def __init__(self, tag: str, accounts: tuple[Account, ...], prices: tuple[Price, ...]) -> None:
        self.tag = tag
        self.accounts = {account.account: account for account in accounts}
        self.prices = prices
        self.models = tuple(dict.fromkeys(price.model for price in prices))
        self._by_key: dict[tuple[str, str, str, str], list[Price]] = {}
        for price in sorted(prices, key=lambda p: p.effective_from_ms):
            self._by_key.setdefault((price.plan, price.model, price.meter, price.currency), []).append(price)

    def unit_price(self, account: str, model: str | None, meter: str, event_ms: int) -> Decimal | None:
        """The price of one unit at an event; None when there is none."""
        known = self.accounts[account]
        plan = known.plan_at(event_ms)
        versions = self._by_key.get((plan, model or "", meter, known.currency), [])
        return next((p.unit_price for p in reversed(versions) if p.effective_from_ms <= event_ms), None)

    @lru_cache(maxsize=10_000)  # noqa: B019  (one catalog lives as long as the run)
    def changes(self, account: str, model: str) -> tuple[int, ...]:
        """Every instant at which what this account pays for this model may change."""
        known = self.accounts[account]
        prices = (
            price.effective_from_ms
            for plan in {plan for _, plan in known.plans}
            for meter in METERS
            for price in self._by_key.get((plan, model, meter, known.currency), [])
        )
        return tuple(sorted({*prices, *(since for since, _ in known.plans)}))

    def files(self) -> list[dict[str, list[dict[str, Any]]]]:
        """The catalog as two catalog files, to be applied in this order."""
        first = {
            "plans": [{"plan": f"{plan}-{self.tag}", "name": plan.title()} for plan in PLANS],
            "accounts": [_account_row(account, account.plans[0]) for account in self.accounts.values()],
            "prices": [
                {
                    "plan": price.plan,
                    "model": price.model,
                    "meter": price.meter,
                    "unit_price": f"{price.unit_price:f}",
                    "currency": price.currency,
                    "effective_from": rfc3339(price.effective_from_ms),
                }
                for price in self.prices
            ],
        }
        changed = [
            _account_row(account, version) for account in self.accounts.values() for version in account.plans[1:]
        ]
        return [first, {"accounts": changed}]


def _account_row(account: Account, version: tuple[int, str]) -> dict[str, Any]:
    since_ms, plan = version
    return {
        "account": account.account,
        "name": account.name,
        "plan": plan,
        "currency": account.currency,
        "timezone": account.timezone,
        "effective_from": rfc3339(since_ms),
    }


def make_catalog(rng: Random, tag: str, start_ms: int, accounts: int = 24) -> Catalog:
    """The catalog of one run. Its accounts and plans carry the run's tag, so that runs never share a total."""
    changed_at_ms = start_ms - CHANGE_BEFORE_MS
    return Catalog(tag, tuple(_accounts(rng, tag, changed_at_ms, accounts)), tuple(_prices(rng, tag, start_ms)))


def _accounts(rng: Random, tag: str, changed_at_ms: int, count: int) -> Iterator[Account]:
    for number in range(1, count + 1):
        plans = [(LONG_AGO_MS, f"{rng.choice(PLANS)}-{tag}")]
        if number % 8 == 3:
            other = rng.choice([plan for plan in PLANS if f"{plan}-{tag}" != plans[0][1]])
            plans.append((changed_at_ms + number, f"{other}-{tag}"))
        yield Account(
            account=f"acct-{number:02d}-{tag}",
            name=f"Customer {number}",
            currency=CURRENCIES[number % 3 == 0],
            timezone=ZONES[number % len(ZONES)],
            plans=tuple(plans),
        )


def _prices(rng: Random, tag: str, start_ms: int) -> Iterator[Price]:
    for family in FAMILIES:
        for size in SIZES:
            model = f"{family}-{size}"
            starts = [LONG_AGO_MS]
            if model in HOT_MODELS:
                starts.append(start_ms - HOT_CHANGE_BEFORE_MS)
            elif size in ("base", "max"):
                starts.append(start_ms - CHANGE_BEFORE_MS + 7)
            if family == "fjord":
                starts.append(start_ms + ANNOUNCED_AFTER_MS)
            for plan in PLANS:
                for meter in METERS:
                    for currency in CURRENCIES:
                        for since_ms in starts:
                            yield Price(f"{plan}-{tag}", model, meter, currency, since_ms, _unit_price(rng, meter))


def _unit_price(rng: Random, meter: str) -> Decimal:
    if meter == "requests" and rng.random() < 0.2:
        return Decimal(0)  # free is a price; it is not the same as none
    most = 20_000_000 if meter == "requests" else 600_000
    return Decimal(rng.randrange(500, most)) / 10**10
