"""The shapes in which a stack and the truth are compared, and the truth in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

STREAM = "stream"
"""The cause of what is live; an audit has written what has another."""


@dataclass(frozen=True)
class Record:
    """A row of the journal; `digest` is the SHA-256 of its bytes, empty where they were not kept (too_large)."""

    digest: str
    disposition: str
    reason: str | None
    source: str | None
    id: str | None


@dataclass(frozen=True)
class Usage:
    """A row of usage; `late_seconds` from the end of its window to when it was received.

    `metered` has (meter, quantity, price version) of each meter that it has; what another meter bills by itself.
    """

    account: str
    request_id: str
    outcome: str
    model: str | None
    currency: str | None
    window_start: datetime
    day: date
    late_seconds: float
    metered: tuple[tuple[str, Decimal | None, int | None], ...]
    sign: int = 1
    cause: str = STREAM

    @property
    def reported(self) -> dict[str, Decimal | None]:
        """Of each meter all of its quantity, also what another bills; None: not reported."""
        found: dict[str, Decimal | None] = {}
        for meter, quantity, _ in self.metered:
            before = found.get(meter)
            found[meter] = quantity if before is None or quantity is None else before + quantity
        return found


@dataclass(frozen=True)
class Window:
    """What one account used in one minute, by model, meter, currency and price; `price_from` is since when it holds.

    `corrected` None: it is not known whether it was.
    """

    account: str
    model: str | None
    meter: str
    currency: str | None
    window_start: datetime
    price_from: datetime | None
    unit_price: Decimal | None
    quantity: Decimal
    amount: Decimal
    corrected: bool | None


@dataclass(frozen=True)
class Period:
    """What a day or month of one account comes to, by model, meter, currency and price; other fields as of Window."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    first_day: date
    price_from: datetime | None
    unit_price: Decimal | None
    quantity: Decimal
    amount: Decimal
    corrected: bool | None


@dataclass(frozen=True)
class Late:
    """What came late into one window, within grace: how many rows of usage reported more than 0, and how much."""

    account: str
    model: str | None
    meter: str
    currency: str | None
    window_start: datetime
    price_version: int | None
    rows: int
    quantity: Decimal


@dataclass(frozen=True)
class Session:
    """One session of a user."""

    start: datetime
    end: datetime
    events: int


@dataclass(frozen=True)
class Source:
    """Who sent; `last_event_time` None: not compared, or nothing came."""

    source: str
    source_epoch: str
    last_event_time: datetime | None
    unsequenced: bool


@dataclass(frozen=True)
class Run:
    """Sequence numbers from first to last of one source: they `arrived`, or are missing between two that did."""

    source: str
    source_epoch: str
    first: int
    last: int
    arrived: bool


@dataclass(frozen=True)
class Straggler:
    """What arrived after grace, and what was decided."""

    account: str
    model: str | None
    request_id: str
    meter: str
    window_start: datetime
    decision: str
    quantity: Decimal
    currency: str | None
    amount: Decimal | None
    cause: str = STREAM

    @property
    def key(self) -> Straggler:
        """Of which what arrived, and what an audit has made of it, is added up."""
        return replace(self, quantity=Decimal(0), amount=None, cause="")


def window(total: Mapping[str, Any]) -> Window:
    """A total of the truth in the same shape; that of an older release says no price, nor what is corrected."""
    return Window(
        total["account"],
        total["model"],
        total["meter"],
        total["currency"],
        datetime.fromisoformat(total["window_start"]),
        *_price(total),
        Decimal(total["quantity"]),
        Decimal(total["amount"]),
        total.get("corrected", False),
    )


def period(expected: Mapping[str, Any]) -> Period:
    """A period of the truth in the same shape."""
    return Period(
        expected["account"],
        expected["model"],
        expected["meter"],
        expected["currency"],
        date.fromisoformat(expected["first_day"]),
        *_price(expected),
        Decimal(expected["quantity"]),
        Decimal(expected["amount"]),
        expected["corrected"],
    )


def _price(expected: Mapping[str, Any]) -> tuple[datetime | None, Decimal | None]:
    """Since when the price of a window or period applies, and of one unit; None: not said, or no price."""
    price_from, unit_price = expected.get("price_from"), expected.get("unit_price")
    return (
        None if price_from is None else datetime.fromisoformat(price_from),
        None if unit_price is None else Decimal(unit_price),
    )


def source(expected: Mapping[str, Any]) -> Source:
    """A source of the truth in the same shape."""
    last = expected["last_event_time"]
    at = None if last is None else datetime.fromisoformat(last)
    return Source(expected["source"], expected["source_epoch"], at, unsequenced=False)


def runs(expected: Mapping[str, Any]) -> Iterator[Run]:
    """The sequence numbers of a source of the truth in the same shape."""
    of = expected["source"], expected["source_epoch"]
    for first, last in expected["arrived"]:
        yield Run(*of, first, last, arrived=True)
    for (_, before), (after, _) in pairwise(expected["arrived"]):
        yield Run(*of, before + 1, after - 1, arrived=False)


def straggler(expected: Mapping[str, Any]) -> Straggler:
    """A straggler of the truth in the same shape."""
    return Straggler(
        expected["account"],
        expected.get("model"),
        expected["request_id"],
        expected["meter"],
        datetime.fromisoformat(expected["window_start"]),
        expected["decision"],
        Decimal(expected["quantity"]),
        expected.get("currency"),
        None if expected["amount"] is None else Decimal(expected["amount"]),
    )
