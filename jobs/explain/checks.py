"""Whether it adds up: amounts are products, usage makes its windows, lines and stragglers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from jobs.explain.arithmetic import EXACT, Cell, Entry, Row, WindowKey
from metering.digits import plain
from metering.vocabulary import UsageCause


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
    key = ("price_version", "meter", "currency")
    known = {tuple(row[name] for name in key): row["unit_price"] for row in prices}
    found = []
    for one in entries:
        version = (one.price_version, one.window.meter, one.window.currency)
        if known.get(version, one.unit_price) != one.unit_price:
            found.append(
                f"usage lsn {one.usage_lsn}, {one.window.meter}: price version {one.price_version} says another price"
            )
    return found


def wrong_lines(entries: Iterable[Entry], lines: Iterable[Row]) -> list[str]:
    """Where usage is on no line of its month, or on one with another unit price, as sentences."""
    key = ("account", "month", "model", "meter", "currency", "price_version")
    known = {tuple(row[name] for name in key): row["unit_price"] for row in lines}
    found = []
    for one in entries:
        of = one.window
        line = (of.account, one.month, of.model, of.meter, of.currency, one.price_version)
        where = f"usage lsn {one.usage_lsn}, {of.meter}"
        if one.counts and line not in known:
            found.append(f"{where}: it is on no line of {one.month:%Y-%m}")
        elif one.counts and known[line] != one.unit_price:
            found.append(f"{where}: price version {one.price_version} has another unit price in its line")
    return found


def wrong_stragglers(entries: Iterable[Entry], stragglers: Iterable[Row], corrections: Iterable[Row]) -> list[str]:
    """Where stragglers do not say what their usage does, or are not in the one correction that they are, as sentences.

    `corrections` are all that name usage of the entries.
    """
    named = Counter((lsn, row["meter"]) for row in corrections for lsn in row["usage_lsns"])
    by_entry = {(row["usage_lsn"], row["meter"]): row for row in stragglers}
    found = []
    for one in _each_once(entries):
        where = f"usage lsn {one.usage_lsn}, {one.window.meter}"
        row = by_entry.get(one.part)
        if row is not None and _of_straggler(row) != _of_entry(one):
            straggler = f"{plain(row['quantity'])} at {_price(row['unit_price'])} (version {row['price_version']})"
            made = f"{plain(one.quantity)} at {_price(one.unit_price)} (version {one.price_version})"
            found.append(f"{where}: the straggler says {straggler}, usage makes {made}")
        # What takes a straggler back, or its place, is one too; earlier versions told only what had closed.
        must_be = one.decision is not None and one.counts and one.cause == UsageCause.STREAM
        if named[one.part] > 1 or (must_be and not named[one.part]):
            found.append(f"{where}: it is in {named[one.part]} corrections instead of one")
    return found


def _each_once(entries: Iterable[Entry]) -> Iterable[Entry]:
    """With what another meter bills as a part of the rest: as a straggler says it."""
    found: dict[tuple[int, str], Entry] = {}
    for one in sorted(entries, key=lambda entry: entry.is_elsewhere):
        first = found.setdefault(one.part, one)
        if first is not one:
            found[one.part] = replace(first, quantity=EXACT.add(first.quantity, one.quantity))
    return found.values()


def _of_straggler(row: Row) -> tuple[object, ...]:
    key = tuple(row[name] for name in WindowKey._fields)
    return (*key, row["price_version"], row["unit_price"], row["quantity"], row["amount"])


def _of_entry(one: Entry) -> tuple[object, ...]:
    return (*one.window, one.price_version, one.unit_price, one.quantity, one.amount)


def _price(unit_price: Decimal | None) -> str:
    return "no price" if unit_price is None else plain(unit_price)


def wrong_windows(entries: Iterable[Entry], stored: Mapping[Cell, Row]) -> list[str]:
    """Where all usage of windows does not make what is stored, version by version, as sentences."""
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
    return found
