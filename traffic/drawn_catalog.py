"""A catalog drawn from the seed: accounts in two currencies and several zones, prices with up to twelve decimals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from random import Random

from traffic.catalog import (
    ANNOUNCED_AFTER_MS,
    BACKDATED_AFTER_MS,
    BACKDATED_MODEL,
    CHANGE_BEFORE_MS,
    CURRENCIES,
    FAMILIES,
    HOT_CHANGE_BEFORE_MS,
    HOT_MODELS,
    LONG_AGO_MS,
    PLANS,
    SIZES,
    ZONES,
    Account,
    Catalog,
    Contract,
    Price,
)
from traffic.meters import METERS, SECONDS


def make_catalog(rng: Random, tag: str, start_ms: int, meters: Sequence[str] = METERS, accounts: int = 24) -> Catalog:
    """The catalog of one run, but for special prices. Its accounts and plans carry the run's tag, so that runs never
    share a total.
    """
    changed_at_ms = start_ms - CHANGE_BEFORE_MS
    return Catalog(
        tag, start_ms, tuple(_accounts(rng, tag, changed_at_ms, accounts)), tuple(_prices(rng, tag, start_ms, meters))
    )


def _accounts(rng: Random, tag: str, changed_at_ms: int, count: int) -> Iterator[Account]:
    for number in range(1, count + 1):
        plan, currency = rng.choice(PLANS), CURRENCIES[number % 3 == 0]
        contracts = [Contract(LONG_AGO_MS, f"{plan}-{tag}", currency)]
        if number % 8 == 3:
            other = rng.choice([name for name in PLANS if name != plan])
            contracts.append(Contract(changed_at_ms + number, f"{other}-{tag}", currency))
        if number % 8 == 5:
            contracts.append(Contract(changed_at_ms + number, f"{plan}-{tag}", CURRENCIES[currency == CURRENCIES[0]]))
        yield Account(
            account=f"acct-{number:02d}-{tag}",
            name=f"Customer {number}",
            timezone=ZONES[number % len(ZONES)],
            contracts=tuple(contracts),
        )


def _prices(rng: Random, tag: str, start_ms: int, meters: Sequence[str]) -> Iterator[Price]:
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
            if model == BACKDATED_MODEL:
                starts += [LONG_AGO_MS + BACKDATED_AFTER_MS, start_ms - CHANGE_BEFORE_MS]
            for plan in PLANS:
                for meter in meters:
                    for currency in CURRENCIES:
                        for since_ms in starts:
                            yield Price(f"{plan}-{tag}", model, meter, currency, since_ms, drawn_price(rng, meter))


def drawn_price(rng: Random, meter: str) -> Decimal:
    """What a unit may cost."""
    if meter == "requests" and rng.random() < 0.2:
        return Decimal(0)  # free is a price; it is not the same as none
    if meter == SECONDS:
        return Decimal(rng.randrange(1, 10**9)).scaleb(-12)
    most = 20_000_000 if meter == "requests" else 600_000
    return Decimal(rng.randrange(500, most)) / 10**10
