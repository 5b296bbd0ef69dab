"""What price conditions can name: columns of events and of their account, and bands of a reported quantity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

ACCOUNT = "account."
"""How the name of a column of the account begins: `account.parent`, `account.tags.tier`."""
EACH_UNIT_ONCE = "each_unit_once"
"""In a stored attribute: whether its columns share no unit. Left out, each is added up as it is reported."""
Bands = tuple[tuple[str, Decimal | None], ...]
"""Names and bounds, up to and including which a quantity is in a band, ascending; the last has none."""


@dataclass(frozen=True)
class PriceAttribute:
    """A column of events, or of the account, by its name; or, where it has `bands`, which of them a quantity is in.

    The quantity is what the report that bills has in the columns `of`, added up. What it does not report is null, and
    if all of them are null it is in no band. `each_unit_once`: a column is left out that is part of another of them, by
    the convention of the event (`metering.contracts.includes`).
    """

    name: str
    of: tuple[str, ...] = ()
    bands: Bands = ()
    each_unit_once: bool = False

    @classmethod
    def banded(
        cls, name: str, of: Iterable[str], bands: Mapping[str, Decimal | None], *, each_unit_once: bool = False
    ) -> PriceAttribute:
        """With the columns, and the bands, in one order. A single column has each unit once."""
        ascending = sorted(bands.items(), key=lambda band: (band[1] is None, band[1] or Decimal(0), band[0]))
        columns = tuple(sorted(set(of)))
        return cls(name, columns, tuple(ascending), each_unit_once and len(columns) > 1)

    @property
    def is_of_account(self) -> bool:
        """Whether the value comes from the account, not from the event."""
        return self.name.startswith(ACCOUNT)

    @property
    def stored(self) -> Any:
        """As JSON: what decides an outcome's price."""
        if not self.bands:
            return self.name
        bounds = {name: None if bound is None else f"{bound.normalize():f}" for name, bound in self.bands}
        once = {EACH_UNIT_ONCE: True} if self.each_unit_once else {}
        return {self.name: {"of": list(self.of), "bands": bounds, **once}}

    def has(self, value: str) -> bool:
        """Whether an event can have this value."""
        return not self.bands or value in dict(self.bands)


def restored(listed: Iterable[Any] | None) -> tuple[PriceAttribute, ...]:
    """Attributes as `stored` gives them, or as a configuration lists them."""
    return tuple(
        PriceAttribute(declared) if isinstance(declared, str) else _banded(declared) for declared in listed or ()
    )


def _banded(declared: Mapping[str, Any]) -> PriceAttribute:
    [(name, given)] = declared.items()
    of = [given["of"]] if isinstance(given["of"], str) else given["of"]
    bounds = {band: None if bound is None else Decimal(bound) for band, bound in given["bands"].items()}
    return PriceAttribute.banded(name, of, bounds, each_unit_once=bool(given.get(EACH_UNIT_ONCE)))


def columns_of_bands(attributes: Iterable[PriceAttribute]) -> tuple[str, ...]:
    """The columns whose quantities bands are of, each once."""
    return tuple(dict.fromkeys(column for attribute in attributes for column in attribute.of))


def texts_of_events(attributes: Iterable[PriceAttribute]) -> tuple[str, ...]:
    """The columns of events that conditions compare as texts, each once."""
    return tuple(
        dict.fromkeys(attribute.name for attribute in attributes if not attribute.bands and not attribute.is_of_account)
    )


def columns_of_accounts(attributes: Iterable[PriceAttribute]) -> tuple[str, ...]:
    """The columns of the account that conditions compare, each once."""
    return tuple(dict.fromkeys(attribute.name for attribute in attributes if attribute.is_of_account))
