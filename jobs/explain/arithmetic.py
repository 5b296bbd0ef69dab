"""Rows of usage → what each of their meters adds to which window, to the last digit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import polars as pl

from jobs.usage_entries import METERED_COLUMNS, metered
from metering.digits import EXACT
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import BILLED
from metering.windows import tumbling

Row = Mapping[str, Any]


class WindowKey(NamedTuple):
    """One line of `weir usage --window PT1M`."""

    window_start: datetime
    account: str
    model: str | None
    meter: str
    currency: str | None

    @property
    def order(self) -> tuple[datetime, str, str, str, str]:
        """What windows are sorted by."""
        return (self.window_start, self.account, self.model or "", self.meter, self.currency or "")


Cell = tuple[WindowKey, int | None]
"""A window's part of one price version (None: unpriced)."""


@dataclass(frozen=True)
class Entry:
    """What one meter of a usage row adds to its window. `quantity` and `amount` (None: unpriced) are signed."""

    usage_lsn: int
    window: WindowKey
    day: date
    """The account's day that it is billed on."""
    has_day: bool
    """Whether its row says the day; else it is UTC's, until the database says another (`days.placed`)."""
    price_version: int | None
    unit_price: Decimal | None
    quantity: Decimal
    amount: Decimal | None
    is_product: bool
    """Whether the row's amount is its quantity times its unit price; or is none, where it has no unit price."""
    cause: str
    decision: str | None
    """Of a straggler."""
    is_billed: bool
    """Whether billing has read the row."""

    @property
    def month(self) -> date:
        """The first day of the account's month that it is billed in."""
        return self.day.replace(day=1)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another meter bills it."""
        return self.price_version is not None and self.price_version <= BILLED_AS_PART

    @property
    def part(self) -> tuple[int, str]:
        """What names it: usage lsn and meter."""
        return self.usage_lsn, self.window.meter

    @property
    def counts(self) -> bool:
        """Whether it is in its window."""
        return self.is_billed and (self.decision is None or self.decision in BILLED)


@dataclass(frozen=True)
class Total:
    """Of one window or line: `amount` of priced usage, and the quantity of unpriced usage."""

    quantity: Decimal = Decimal(0)
    amount: Decimal = Decimal(0)
    unpriced_quantity: Decimal = Decimal(0)


def meters_by_lsn(usage: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    """Rows of usage (lsn, outcome, METERED_COLUMNS) → by lsn the meters of each (metered.ENTRY)."""
    found = metered(usage.select("lsn", "outcome", *METERED_COLUMNS).lazy()).collect().sort("lsn", "meter")
    entries: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in found.drop("outcome").iter_rows(named=True):
        entries[entry.pop("lsn")].append(entry)
    return entries


def entries_of(
    usage: pl.DataFrame, decisions: Mapping[tuple[int, str], str], billed_to: int | None
) -> tuple[Entry, ...]:
    """What rows of usage (USAGE_READ) add, where they have a quantity; in the order of lsn and meter.

    `decisions` are those of stragglers, by (usage_lsn, meter). `billed_to`: billing has read the rows below it.
    """
    meters = meters_by_lsn(usage)
    names = ("lsn", "account", "model", "currency", "event_time", "day", "sign", "cause")
    return tuple(
        _entry(row, meter, decisions, billed_to)
        for row in usage.select(names).iter_rows(named=True)
        for meter in meters[row["lsn"]]
        if meter["quantity"]
    )


def _entry(row: Row, meter: Row, decisions: Mapping[tuple[int, str], str], billed_to: int | None) -> Entry:
    start = tumbling(row["event_time"]).start
    quantity, unit_price, amount = meter["quantity"], meter["unit_price"], meter["amount"]
    version = meter["price_version"]
    is_priced = version is not None
    is_elsewhere = is_priced and version <= BILLED_AS_PART
    product = EXACT.multiply(quantity, unit_price) if is_priced and unit_price is not None else None
    return Entry(
        usage_lsn=row["lsn"],
        window=WindowKey(start, row["account"], row["model"], meter["meter"], row["currency"]),
        day=row["day"] or row["event_time"].date(),
        has_day=row["day"] is not None,
        price_version=meter["price_version"],
        unit_price=unit_price,
        quantity=EXACT.multiply(quantity, row["sign"]),
        amount=None if amount is None else EXACT.multiply(amount, row["sign"]),
        # A version without a unit price has tiers or packages: its amount is a function of the month's total.
        is_product=amount == product and not (is_elsewhere and product is None),
        cause=row["cause"],
        decision=decisions.get((row["lsn"], meter["meter"])),
        is_billed=billed_to is not None and row["lsn"] < billed_to,
    )


def total(entries: Iterable[Entry]) -> Total:
    """What entries that count add up to."""
    found = Total()
    for entry in entries:
        if entry.counts:
            unpriced = entry.quantity if entry.price_version is None else Decimal(0)
            found = Total(
                EXACT.add(found.quantity, entry.quantity),
                EXACT.add(found.amount, entry.amount or Decimal(0)),
                EXACT.add(found.unpriced_quantity, unpriced),
            )
    return found


def total_of_stored(rows: Iterable[Row]) -> Total:
    """What rows of `usage_windows` or `usage_days`, one for each price version, add up to."""
    found = Total()
    for row in rows:
        unpriced = row["quantity"] if row["price_version"] is None else Decimal(0)
        found = Total(
            EXACT.add(found.quantity, row["quantity"]),
            EXACT.add(found.amount, row["amount"] or Decimal(0)),
            EXACT.add(found.unpriced_quantity, unpriced),
        )
    return found
