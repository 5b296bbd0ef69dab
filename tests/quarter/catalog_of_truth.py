"""Who has which plan, and what everything costs: told in time, too late, anew, and deleted. Nothing of Weir."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.quarter.truth import BEGIN, DAYS, METERS, Change, Contract, PriceKey, Truth

PLANS = ("standard", "scale", "enterprise")
MODELS = ("small-1", "large-2", "vision-3")
LATE_MODEL, FREE_MODEL = "preview-4", "internal-5"
"""Priced in the middle of the quarter, from its beginning on; never priced."""
CURRENCIES = ("EUR", "USD")
NEW_YORK, KOLKATA = "America/New_York", "Asia/Kolkata"
IN_FORCE = BEGIN - timedelta(days=60)
"""From when on the first prices are."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def tell_catalog(truth: Truth, chance: random.Random, accounts: int) -> None:
    """Fill zones, contracts, prices and the changes that tell of them."""
    told = sorted([*_accounts(truth, chance, accounts), *_prices(truth, chance)], key=lambda change: change.at)
    for change in told:
        (_take_contract if change.what == "account" else _take_price)(truth, change)
        truth.changes.append(change)


def _accounts(truth: Truth, chance: random.Random, count: int) -> Iterator[Change]:
    for number in range(count):
        account, zone = f"acme-{number:02}", (NEW_YORK, KOLKATA)[number % 2]
        truth.zones[account] = zone
        plan, currency = chance.choice(PLANS), chance.choice(CURRENCIES)
        yield _contract(account, zone, BEGIN, Contract(IN_FORCE, plan, currency))
        if number % 3 == 0:
            other = chance.choice([each for each in PLANS if each != plan])
            at = BEGIN + chance.uniform(15, 75) * DAY
            is_backdated = number % 2 == 0
            truth.counts["plans that changed, told afterwards" if is_backdated else "plans that changed"] += 1
            holds_from = at + chance.uniform(1, 12) * DAY * (-1 if is_backdated else 1)
            yield _contract(account, zone, at, Contract(holds_from, other, currency))
        elif number % 7 == 1:
            truth.counts["currencies that changed"] += 1
            at = BEGIN + chance.uniform(15, 75) * DAY
            (other,) = (each for each in CURRENCIES if each != currency)
            yield _contract(account, zone, at, Contract(at + 3 * DAY, plan, other))
    for number in range(2):
        account = f"late-{number}"
        truth.zones[account] = "UTC"
        truth.counts["accounts that were told of late"] += 1
        told = Contract(IN_FORCE, PLANS[number], CURRENCIES[number])
        yield _contract(account, "UTC", BEGIN + (20 + 15 * number) * DAY, told)
    truth.zones["nobody"] = "UTC"


def _contract(account: str, zone: str, at: datetime, told: Contract) -> Change:
    row = {"account": account, "plan": told.plan, "currency": told.currency, "timezone": zone}
    return Change(at, "account", {**row, "effective_from": _seconds(told.holds_from)})


def _prices(truth: Truth, chance: random.Random) -> Iterator[Change]:
    keys = [(p, model, m, c) for p in PLANS for model in MODELS for m in METERS for c in CURRENCIES]
    for key in keys:
        yield _price(chance, key, BEGIN, IN_FORCE)
    late_at = BEGIN + 40 * DAY + 7 * HOUR
    late = [(plan, LATE_MODEL, meter, currency) for plan in PLANS for meter in METERS for currency in CURRENCIES]
    for key in late:
        truth.counts["prices of a model that had none"] += 1
        yield _price(chance, key, late_at, IN_FORCE)
    for number, key in enumerate(chance.sample(keys, len(keys) * 4 // 5)):
        at = BEGIN + chance.uniform(2, DAYS - 2) * DAY
        match number % 6:
            case 0:
                truth.counts["prices announced"] += 1
                yield _price(chance, key, at, at + chance.uniform(0.5, 9) * DAY)
            case 1:
                truth.counts["prices told afterwards"] += 1
                yield _price(chance, key, at, at - chance.uniform(0.1, 20) * DAY)
            case 2:
                truth.counts["prices corrected afterwards"] += 1
                announced = _price(chance, key, at, at + DAY)
                yield announced
                yield replace(_price(chance, key, at + chance.uniform(2, 12) * DAY, at + DAY))
            case 3:
                truth.counts["prices deleted before they held"] += 1
                announced = _price(chance, key, at, at + 9 * DAY)
                yield announced
                yield _gone(announced, at + chance.uniform(1, 6) * DAY)
            case 4:
                truth.counts["prices deleted while they held"] += 1
                announced = _price(chance, key, at, at + DAY)
                yield announced
                yield _gone(announced, at + chance.uniform(2, 12) * DAY)
                yield _price(chance, key, at + 14 * DAY, at + chance.uniform(14, 20) * DAY)
            case _:
                truth.counts["prices deleted as of before"] += 1
                begun = _price(chance, key, at, at)
                yield begun
                gone_at = at + chance.uniform(2, 12) * DAY
                yield _gone(begun, gone_at, gone_at - chance.uniform(0.1, 14) * DAY)


def _price(chance: random.Random, key: PriceKey, at: datetime, holds_from: datetime) -> Change:
    most = {"requests": 10**9, "gpu_seconds": 10**10}.get(key[2], 10**7)
    unit_price = Decimal(chance.randint(1, most)).scaleb(-12)
    names = ("plan", "model", "meter", "currency")
    row: dict[str, Any] = dict(zip(names, key, strict=True))
    return Change(at, "price", {**row, "effective_from": _seconds(holds_from), "unit_price": f"{unit_price:f}"})


def _gone(price: Change, at: datetime, ends: datetime | None = None) -> Change:
    return replace(price, at=at, ends=_seconds(at if ends is None else ends))


def _seconds(instant: datetime) -> datetime:
    return instant.replace(microsecond=0)


def _take_contract(truth: Truth, change: Change) -> None:
    row = change.row
    told = Contract(row["effective_from"], row["plan"], row["currency"])
    truth.contracts.setdefault(row["account"], []).append(told)


def _take_price(truth: Truth, change: Change) -> None:
    row = change.row
    key = row["plan"], row["model"], row["meter"], row["currency"]
    of_key, begins = truth.prices.setdefault(key, {}), row["effective_from"]
    if change.ends is None:
        of_key[begins] = Decimal(row["unit_price"])
    elif change.ends > begins:
        truth.ends[key, begins] = change.ends
    else:
        del of_key[begins]
