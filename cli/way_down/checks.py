"""Whether it adds up: amounts are products, usage makes its windows, and corrections are what their usage adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from cli.output import plain
from cli.way_down.arithmetic import EXACT, Cell, Entry, Row, total


def wrong_products(entries: Iterable[Entry], stored: Mapping[Cell, Row]) -> list[str]:
    """What is wrong with amounts and unit prices, as sentences."""
    found = []
    for one in entries:
        where = f"usage lsn {one.usage_lsn}, {one.window.meter}"
        if not one.is_product:
            found.append(f"{where}: the amount is not quantity x unit price")
        row = stored.get((one.window, one.price_version))
        if one.counts and row is not None and row["unit_price"] != one.unit_price:
            found.append(f"{where}: price version {one.price_version} has another unit price in its window")
    return found


def wrong_prices(entries: Iterable[Entry], prices: Iterable[Row]) -> list[str]:
    """Where a version (`price_versions`) says another unit price than usage has, as sentences."""
    key = ("price_version", "model", "meter", "currency")
    known = {tuple(row[name] for name in key): row["unit_price"] for row in prices}
    found = []
    for one in entries:
        version = (one.price_version, one.window.model, one.window.meter, one.window.currency)
        if known.get(version, one.unit_price) != one.unit_price:
            found.append(
                f"usage lsn {one.usage_lsn}, {one.window.meter}: price version {one.price_version} says another price"
            )
    return found


def wrong_windows(entries: Sequence[Entry], stored: Mapping[Cell, Row], corrections: Iterable[Row]) -> list[str]:
    """Where all usage of windows does not make what is stored, version by version, as sentences.

    And where corrections (rows of `corrections`) are not what their usage rows add.
    """
    made: defaultdict[Cell, Decimal] = defaultdict(Decimal)
    for one in entries:
        if one.counts:
            cell = (one.window, one.price_version)
            made[cell] = EXACT.add(made[cell], one.quantity)
    found = []
    for key, version in sorted({*made, *stored}, key=lambda cell: (cell[0].order, cell[1] or 0)):
        row = stored.get((key, version))
        is_now = row["quantity"] if row else Decimal(0)
        if made[key, version] != is_now:
            found.append(
                f"{key.model} {key.meter} {key.currency}, price version {version}: usage makes "
                f"{plain(made[key, version])}, the window has {plain(is_now)}"
            )
        if row and row["unit_price"] is not None and row["amount"] != EXACT.multiply(is_now, row["unit_price"]):
            found.append(f"{key.model} {key.meter}, price version {version}: the amount is not quantity x unit price")
    added = {(one.usage_lsn, one.window.meter): one for one in entries}
    return found + [problem for one in corrections if (problem := _wrong_correction(one, added)) is not None]


def _wrong_correction(correction: Row, added: Mapping[tuple[int, str], Entry]) -> str | None:
    """What is wrong with one; `added`: entries by usage lsn and meter."""
    named_rows = ((lsn, correction["meter"]) for lsn in correction["usage_lsns"])
    made = total(added[row] for row in named_rows if row in added)
    amount = EXACT.subtract(correction["new_amount"] or Decimal(0), correction["old_amount"] or Decimal(0))
    quantity = EXACT.subtract(correction["new_quantity"], correction["old_quantity"])
    if (made.quantity, made.amount) == (quantity, amount):
        return None
    named = f"correction {correction['usage_lsn']}, {correction['meter']}"
    return f"{named}: its usage makes {plain(made.quantity)}, and it says {plain(quantity)}"
