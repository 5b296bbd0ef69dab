"""Which price a model has in the end: its own, or that of the model that it is an alias of, and no further."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from metering.pricing import Version
from tests.specifications.pricing import price_as_of

Prices = Mapping[tuple[Any, Any, Any, Any], Sequence[Version[Any]]]
"""Versions by plan, model, meter and currency; an alias is one at the end of its name."""
AsOf = Callable[[Sequence[Version[Any]]], Version[Any] | None]
"""The version that holds for an event."""
ALIASES = "requests", "XXX"
NEVER = datetime.max.replace(tzinfo=UTC)


def price_in_force(
    prices: Prices,
    key: tuple[str | None, str | None, str, str | None],
    at: datetime,
    decided: int,
    seen_from: int | None = None,
) -> Version[Any] | None:
    """The price of a plan, model, meter and currency for an event, as known when it was decided."""

    def as_of(versions: Sequence[Version[Any]]) -> Version[Any] | None:
        return price_as_of(versions, at, decided, seen_from)

    plan, model, meter, currency = key
    if (own := as_of(prices.get(key, ()))) is not None or model is None:
        return own
    other = _aliased(prices, plan, model, as_of)
    return None if other is None else as_of(prices.get((plan, other, meter, currency), ()))


def _aliased(prices: Prices, plan: str | None, model: str, as_of: AsOf) -> str | None:
    """The alias that began last; none where that one has ended."""
    begins = f'{model}{{"=":"'
    begun: list[tuple[datetime, str, bool]] = []
    for (of_plan, text, *of), versions in prices.items():
        if of_plan == plan and tuple(of) == ALIASES and str(text).startswith(begins):
            began = as_of([_endless(version) for version in versions])
            other = str(text).removeprefix(begins).removesuffix('"}')
            begun += [] if began is None else [(began.effective_from, other, as_of(versions) is not None)]
    latest = max((since for since, _, _ in begun), default=None)
    return next((other if holds else None for since, other, holds in sorted(begun) if since == latest), None)


def _endless(version: Version[Any]) -> Version[Any]:
    """A price that ended after it had begun, as if it had not ended."""
    ends_at = version.ends_at
    if ends_at is None or ends_at <= version.effective_from:
        return version
    return replace(version, ends_at=NEVER)
