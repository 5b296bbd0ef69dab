"""Whether an explanation adds up: amounts are products; usage makes up windows, lines and stragglers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from jobs.explain.arithmetic import Cell, Entry, Row, WindowKey
from metering.digits import EXACT, plain
from metering.vocabulary import UsageCause


def wrong_products(entries: Iterable[Entry], stored: Mapping[Cell, Row]) -> list[str]:
    """What is wrong with amounts and unit prices, as sentences."""
    found = []
    for entry in entries:
        where = f"usage lsn {entry.usage_lsn}, {entry.window.meter}"
        if not entry.is_product:
            found.append(f"{where}: the amount is not quantity x unit price")
        row = stored.get((entry.window, entry.price_version))
        if entry.counts and row is not None and row["unit_price"] != entry.unit_price:
            found.append(f"{where}: price version {entry.price_version} has another unit price in its window")
    return found


def wrong_prices(entries: Iterable[Entry], prices: Iterable[Row]) -> list[str]:
    """Where a version (`price_versions`) has another unit price than usage, as sentences."""
    key = ("price_version", "meter", "currency")
    known = {tuple(row[name] for name in key): row["unit_price"] for row in prices}
    found = []
    for entry in entries:
        version = (entry.price_version, entry.window.meter, entry.window.currency)
        if known.get(version, entry.unit_price) != entry.unit_price:
            found.append(
                f"usage lsn {entry.usage_lsn}, {entry.window.meter}: "
                f"price version {entry.price_version} says another price"
            )
    return found


def wrong_lines(entries: Iterable[Entry], lines: Iterable[Row]) -> list[str]:
    """Where usage is on no line of its month, or on one with another unit price, as sentences."""
    key = ("account", "month", "model", "meter", "currency", "price_version")
    known = {tuple(row[name] for name in key): row["unit_price"] for row in lines}
    found = []
    for entry in entries:
        of = entry.window
        line = (of.account, entry.month, of.model, of.meter, of.currency, entry.price_version)
        where = f"usage lsn {entry.usage_lsn}, {of.meter}"
        if entry.counts and line not in known:
            found.append(f"{where}: it is on no line of {entry.month:%Y-%m}")
        elif entry.counts and known[line] != entry.unit_price:
            found.append(f"{where}: price version {entry.price_version} has another unit price in its line")
    return found


def wrong_stragglers(entries: Iterable[Entry], stragglers: Iterable[Row], corrections: Iterable[Row]) -> list[str]:
    """Where stragglers do not say what their usage does, or are not in the one correction that they are, as sentences.

    `corrections` are all that name usage of the entries.
    """
    named = Counter((lsn, row["meter"]) for row in corrections for lsn in row["usage_lsns"])
    by_entry = {(row["usage_lsn"], row["meter"]): row for row in stragglers}
    found = []
    for entry in _each_once(entries):
        where = f"usage lsn {entry.usage_lsn}, {entry.window.meter}"
        row = by_entry.get(entry.part)
        if row is not None and _of_straggler(row) != _of_entry(entry):
            straggler = f"{plain(row['quantity'])} at {_price(row['unit_price'])} (version {row['price_version']})"
            made = f"{plain(entry.quantity)} at {_price(entry.unit_price)} (version {entry.price_version})"
            found.append(f"{where}: the straggler says {straggler}, usage makes {made}")
        # Rows that take back or replace a straggler are corrections too; earlier versions recorded only closed windows.
        must_be = entry.decision is not None and entry.counts and entry.cause == UsageCause.STREAM
        if named[entry.part] > 1 or (must_be and not named[entry.part]):
            found.append(f"{where}: it is in {named[entry.part]} corrections instead of one")
    return found


def _each_once(entries: Iterable[Entry]) -> Iterable[Entry]:
    """With the units that another meter bills merged into the rest, as in a straggler's row."""
    found: dict[tuple[int, str], Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.is_elsewhere):
        first = found.setdefault(entry.part, entry)
        if first is not entry:
            found[entry.part] = replace(first, quantity=EXACT.add(first.quantity, entry.quantity))
    return found.values()


def _of_straggler(row: Row) -> tuple[object, ...]:
    key = tuple(row[name] for name in WindowKey._fields)
    return (*key, row["price_version"], row["unit_price"], row["quantity"], row["amount"])


def _of_entry(entry: Entry) -> tuple[object, ...]:
    return (*entry.window, entry.price_version, entry.unit_price, entry.quantity, entry.amount)


def _price(unit_price: Decimal | None) -> str:
    return "no price" if unit_price is None else plain(unit_price)


def wrong_windows(entries: Iterable[Entry], stored: Mapping[Cell, Row]) -> list[str]:
    """Where all usage of windows does not make what is stored, version by version, as sentences."""
    made: defaultdict[Cell, Decimal] = defaultdict(Decimal)
    for entry in entries:
        if entry.counts:
            cell = (entry.window, entry.price_version)
            made[cell] = EXACT.add(made[cell], entry.quantity)
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
    return found
