"""Rows of usage as tests write and read them: flat, with a quantity, version, unit price and amount per meter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from jobs.streams import EARLIER_METERED
from metering.meters import Meter
from metering.vocabulary import Outcome

EARLIER = {field.name for field in EARLIER_METERED}
_ENTRY = ("quantity", "price_version", "unit_price", "amount")


def flat(row: Mapping[str, Any], meters: Iterable[str] = tuple(Meter)) -> dict[str, Any]:
    """The row with `<meter>`, `<meter>_price_version`, `<meter>_unit_price`, `<meter>_amount` in place of the list.

    What the list does not have is null; whole quantities are int.
    """
    if row["meters"] is None:
        return {name: value for name, value in row.items() if name != "meters"}
    found = {name: value for name, value in row.items() if name not in EARLIER and name != "meters"}
    entries = {entry["meter"]: entry for entry in row["meters"]}
    assert len(entries) == len(row["meters"]), "a meter occurs twice"
    for meter in meters:
        entry = entries.get(meter, dict.fromkeys(_ENTRY))
        found |= dict(zip(_columns(meter), (entry[name] for name in _ENTRY), strict=True))
        if found[meter] is not None and found[meter] == int(found[meter]):
            found[meter] = int(found[meter])
    return found


def listed(row: Mapping[str, Any], meters: Iterable[str] = tuple(Meter)) -> dict[str, Any]:
    """A flat row as it is written, with an entry for each of `meters` that it has, or should have as a match."""
    entries = []
    written = {name: value for name, value in row.items() if name not in EARLIER}
    for meter in meters:
        names = _columns(meter)
        quantity, *priced = (row.get(name) for name in names)
        written = {name: value for name, value in written.items() if name not in names}
        if quantity is None and (row["outcome"] != Outcome.MATCHED or meter not in tuple(Meter)):
            continue
        exact = None if quantity is None else Decimal(quantity)
        entries.append({"meter": str(meter), **dict(zip(_ENTRY, (exact, *priced), strict=True))})
    return {**written, "meters": entries}


def _columns(meter: str) -> tuple[str, str, str, str]:
    return (meter, f"{meter}_price_version", f"{meter}_unit_price", f"{meter}_amount")
