"""Specification: which version of an account or price applies. `jobs/joins/catalog_versions.py` has it for columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from metering.digits import EXACT
from metering.price_attributes import PriceAttribute
from metering.price_tiers import PRICE_DECIMALS, Kind, PriceTerms
from metering.pricing import Version

Value = TypeVar("Value")


def account_as_of(versions: Iterable[Version[Value]], event_time: datetime, decided_lsn: int) -> Version[Value] | None:
    """The version of one account that applies at `event_time`, as known at `decided_lsn`; None when there is none.

    An account is one row of the catalog, with the time from which it applies: the newest version that has begun
    applies, even against one that was announced before it and begins later. A deletion is a version. The very first
    version applies from the beginning of time.
    """
    visible = sorted((v for v in versions if v.lsn < decided_lsn), key=lambda version: version.lsn)
    begun = [v for number, v in enumerate(visible) if number == 0 or v.effective_from <= event_time]
    return begun[-1] if begun and begun[-1].value is not None else None


def price_as_of(
    versions: Sequence[Version[Value]], event_time: datetime, decided_lsn: int, seen_from: int | None = None
) -> Version[Value] | None:
    """The version of one (plan, model, meter, currency) that applies at `event_time`, as known at `decided_lsn`.

    The price that began last applies until it ends; then none does, until another begins. A price that ended before it
    began never applied, so the price before it continues; so it does if a price is withdrawn. A reader that looks back
    from lsn `seen_from` also knows the versions that came since. A price that was withdrawn since still applied before
    that; a price that came since and was withdrawn again never applied.
    """
    known = [v for v in versions if v.effective_from <= event_time and v.lsn < max(decided_lsn, seen_from or 0)]
    for begins in sorted({version.effective_from for version in known}, reverse=True):
        of_instant = sorted((v for v in known if v.effective_from == begins), key=lambda version: version.lsn)
        if (held := _effective(of_instant, decided_lsn)) is not None:
            price, ends_at = held
            return price if ends_at is None or event_time < ends_at else None
    return None


def _effective(versions: Sequence[Version[Value]], decided_lsn: int) -> tuple[Version[Value], datetime | None] | None:
    """Of all versions that begin at one instant, by lsn: the price that began then, and when it ends; None if none."""
    if _is_withdrawn(versions[-1]):
        before = [version for version in versions if version.lsn < decided_lsn]
        if not before or _is_withdrawn(before[-1]):
            return None
        versions = before
    last = versions[-1]
    price = next((version for version in reversed(versions) if version.value is not None), None)
    if price is None or (last.ends_at is not None and last.ends_at <= last.effective_from):
        return None
    return price, last.ends_at


def _is_withdrawn(version: Version[Value]) -> bool:
    return version.value is None and version.ends_at is None


def band_of(attribute: PriceAttribute, quantity: Decimal | None) -> str | None:
    """The band of an attribute that a quantity is in; None for what is not reported."""
    if quantity is None:
        return None
    return next((name for name, bound in attribute.bands if bound is None or quantity <= bound), None)


def usual_unit_price(terms: PriceTerms) -> Decimal:
    """What `catalog.usual_unit_price` says of terms: the price of one unit, to compare it with other prices.

    Of tiers it is that of the first one that is not free, of packages that of one unit of a full package, without the
    digits after the 12th decimal.
    """
    if terms.kind is Kind.PACKAGE:
        steps = EXACT.multiply(terms.package_price, Decimal(10) ** PRICE_DECIMALS)
        return Decimal(EXACT.divide_int(steps, terms.package_size)).scaleb(-PRICE_DECIMALS)
    return next((tier.unit_price for tier in terms.tiers if tier.unit_price), Decimal(0))
