"""Models that are not priced by their names alone: by how they begin, by what their events say, or as another model.

Each is a model of its own, beside those that the population calls, so that nobody else's price depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from traffic.attributes import CONTEXT, LONG, OPERATION
from traffic.catalog import (
    CHANGE_BEFORE_MS,
    CURRENCIES,
    LONG_AGO_MS,
    PLANS,
    Alias,
    Catalog,
    Conditions,
    Price,
)
from traffic.drawn_catalog import drawn_price

DATED, DATED_LATER, DATED_OWN = "gale-2026-03-large", "gale-2026-05-small", "gale-2026-05-nano"
LONGER, PREFIXED_LONGER = "harbor-long", "harbor-xl-1"
LATEST, LATEST_LONGER, OF_AN_ALIAS, OF_ITS_OWN = "gale-latest", "newest-harbor", "gale-newest", DATED_OWN
NAMES = (DATED, DATED_LATER, DATED_OWN, LONGER, PREFIXED_LONGER, LATEST, LATEST_LONGER, OF_AN_ALIAS)
CHANGING_NAMES = (DATED, DATED_LATER, LATEST, LONGER, LATEST_LONGER)
"""Of which something begins shortly before the traffic does."""
UNPRICED_NAME = OF_AN_ALIAS
"""An alias of an alias: that one is not followed."""
BANDED_NAMES = (LONGER, PREFIXED_LONGER, LATEST_LONGER)
"""Whose prices depend on how much input there is, where the stack knows that."""
OPERATION_WITH_PRICE = "chat"


@dataclass(frozen=True)
class _Offer:
    """A price for each plan and currency, of all meters or of every second one."""

    model: str
    since_ms: int
    conditions: Conditions = ()
    is_of_some: bool = False


def with_names(catalog: Catalog, rng: Random, *, knows_attributes: bool) -> Catalog:
    """The catalog with prices of NAMES, and aliases; those that depend on events only where the stack knows how."""
    changed_ms = catalog.made_ms - CHANGE_BEFORE_MS
    offers = [*_prefixes(changed_ms), *_contexts(changed_ms)]
    offered = [offer for offer in offers if knows_attributes or not offer.conditions]
    return Catalog(
        catalog.tag,
        catalog.made_ms,
        tuple(catalog.accounts.values()),
        catalog.prices,
        special=tuple(_prices(rng, catalog.tag, catalog.meters, offered)),
        aliases=tuple(_aliases(catalog.tag, changed_ms)),
    )


def _prefixes(changed_ms: int) -> Iterator[_Offer]:
    yield _Offer("gale-2026-*", LONG_AGO_MS)
    yield _Offer("gale-2026-*", changed_ms)
    yield _Offer("gale-2026-05-*", changed_ms + 11)
    yield _Offer(DATED_OWN, LONG_AGO_MS, is_of_some=True)


def _contexts(changed_ms: int) -> Iterator[_Offer]:
    """One for both conditions must be there from when the later of the two begins."""
    long, chat = (CONTEXT, LONG), (OPERATION, OPERATION_WITH_PRICE)
    yield _Offer("harbor-*", LONG_AGO_MS)
    yield _Offer("harbor-xl-*", LONG_AGO_MS, (long,))
    yield _Offer(LONGER, LONG_AGO_MS)
    yield _Offer(LONGER, LONG_AGO_MS, (chat,), is_of_some=True)
    yield _Offer(LONGER, changed_ms + 17, (long,), is_of_some=True)
    yield _Offer(LONGER, changed_ms + 17, (long, chat), is_of_some=True)


def _prices(rng: Random, tag: str, meters: Sequence[str], offers: Sequence[_Offer]) -> Iterator[Price]:
    for offer in offers:
        for plan in PLANS:
            for meter in meters[:: 1 + offer.is_of_some]:
                for currency in CURRENCIES:
                    unit_price = drawn_price(rng, meter)
                    key = f"{plan}-{tag}", offer.model, meter, currency, offer.since_ms
                    yield Price(*key, unit_price, offer.conditions)


def _aliases(tag: str, changed_ms: int) -> Iterator[Alias]:
    for plan in PLANS:
        of_plan = f"{plan}-{tag}"
        yield Alias(of_plan, LATEST, "aurora-base", LONG_AGO_MS)
        yield Alias(of_plan, LATEST, DATED, changed_ms + 13)
        yield Alias(of_plan, LATEST_LONGER, LONGER, LONG_AGO_MS)
        yield Alias(of_plan, OF_AN_ALIAS, LATEST, LONG_AGO_MS)
        # It has prices of its own, and of how it begins: the alias is asked last.
        yield Alias(of_plan, OF_ITS_OWN, "aurora-large", LONG_AGO_MS)
