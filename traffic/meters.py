"""The meters of the traffic, and how much of each a call uses: written once more, for a truth that is nobody's copy."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

REPORTED = ("input_tokens", "output_tokens", "cached_tokens")
"""What all completions report, by its column; its meter has the same name."""
METERS = ("requests", *REPORTED)
"""The meters of a stack that declares none."""
REASONING, SECONDS, SEATS, STORED = "reasoning_tokens", "gpu_seconds", "seats", "stored_gigabytes"
"""What some gateways report besides, by its column."""
USER, CONTENT = "user_id", "content_hash"
"""Texts of events whose values meters compare, by their columns."""

Quantity = int | Decimal | None
Used = Mapping[str, Quantity]
"""Of each column how much; None: the gateway does not know it, which is not 0."""
Where = tuple[tuple[str, tuple[str, ...]], ...]
"""Columns of events, and which values of each a meter asks for."""
BILLED = ("matched", "abandoned")
"""Outcomes that are counted."""
UNIQUE, MAX, LATEST = "unique", "max", "latest"
DAY, MONTH = "day", "month"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_UNITS_SECONDS = (86_400, 3_600, 60, 1)


@dataclass(frozen=True)
class Meter:
    """A meter that a stack declares."""

    name: str
    sums: str | None = None
    """The column that it adds up; None: it counts requests."""
    is_expected: bool = False
    """Whether a completion that does not report it leaves a quantity that nobody knows, and not none."""
    within: str | None = None
    """The meter that counts its units, too."""
    where: Where = ()
    once_per: tuple[str, int] | None = None
    """The column of contents, and in windows of how many seconds each counts once; None: each outcome counts."""

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> Meter:
        """From what `meters` of a configuration says of it."""
        sums, expected, once = document.get("sum"), document.get("expected"), document.get("once_per")
        is_expected = sums in REPORTED if expected is None else expected
        once_per = None if once is None else (once["column"], _seconds(once["within"]))
        return cls(name, sums, is_expected, document.get("within"), _conditions(document), once_per)


@dataclass(frozen=True)
class PeriodMeter:
    """A meter that bills each day or month of an account's calendar as a whole, by its members."""

    name: str
    aggregation: str
    """UNIQUE: the number of different texts. MAX: the greatest number. LATEST: the number of the latest event."""
    column: str
    period: str
    where: Where = ()

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> PeriodMeter:
        """From what `meters` of a configuration says of it."""
        aggregation = next(kind for kind in (UNIQUE, MAX, LATEST) if document.get(kind) is not None)
        return cls(name, aggregation, document[aggregation], document["period"], _conditions(document))


def _conditions(document: Mapping[str, Any]) -> Where:
    where = document.get("where") or {}
    return tuple((column, tuple(value) if isinstance(value, list) else (value,)) for column, value in where.items())


def _seconds(duration: str) -> int:
    """An ISO 8601 duration of days, hours, minutes and seconds."""
    found = _DURATION.fullmatch(duration)
    assert found is not None, duration
    return sum(int(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_SECONDS, strict=True))


DEFAULT = (
    Meter("cached_tokens", "cached_tokens", is_expected=True, within="input_tokens"),
    Meter("input_tokens", "input_tokens", is_expected=True),
    Meter("output_tokens", "output_tokens", is_expected=True),
    Meter("requests"),
)
"""By name, as those that are declared."""
INCLUDED = {"cached_tokens": "input_tokens", REASONING: "output_tokens"}
"""What all gateways of the traffic report as a part of what: by the column of the part that of the whole."""


def drawn(rng: Random) -> Used:
    """What a call used."""
    input_tokens = int(rng.lognormvariate(6.0, 1.3)) + 1
    output_tokens = int(rng.lognormvariate(5.0, 1.2))
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": rng.choice((0, 0, input_tokens // 2, input_tokens)),
        REASONING: rng.choice((0, output_tokens // 3, output_tokens)),
        SECONDS: Decimal(rng.choice((0, 1, rng.randrange(10**6), rng.randrange(10**8)))).scaleb(-6),
        SEATS: rng.choice((0, 1, rng.randrange(500))),
        STORED: Decimal(rng.choice((0, 1, rng.randrange(10**7)))).scaleb(-3),
    }


def quantities(
    meters: Iterable[Meter], outcome: str, reported: Used, texts: Mapping[str, str], *, is_of_request: bool = True
) -> dict[str, Quantity]:
    """How much of each meter an outcome is, by what its completion told; a meter of which it is nothing is left out.

    `texts`: what its events say besides, by column. What is of no request counts as none, and need not report anything.
    """
    found: dict[str, Quantity] = {}
    for meter in meters:
        if not _is_asked_for(meter.where, outcome, texts):
            continue
        if meter.sums is None:
            if is_of_request and outcome in BILLED:
                found[meter.name] = 1
        elif reported.get(meter.sums) is not None or (is_of_request and meter.is_expected and outcome == "matched"):
            found[meter.name] = reported.get(meter.sums)
    return found


def members(
    meters: Iterable[PeriodMeter], outcome: str, reported: Used, texts: Mapping[str, str]
) -> dict[str, str | Decimal]:
    """The text or number that an outcome adds to the period of each meter; arguments as of `quantities`.

    A meter is left out where the outcome is not billed, or does not say the column.
    """
    found: dict[str, str | Decimal] = {}
    for meter in meters:
        if outcome not in BILLED or not _is_asked_for(meter.where, outcome, texts):
            continue
        member = texts.get(meter.column) if meter.aggregation == UNIQUE else reported.get(meter.column)
        if member is not None:
            found[meter.name] = member if isinstance(member, str) else Decimal(member)
    return found


def _is_asked_for(where: Where, outcome: str, texts: Mapping[str, str]) -> bool:
    return all(_text(column, outcome, texts) in values for column, values in where)


def _text(column: str, outcome: str, texts: Mapping[str, str]) -> str | None:
    """What the events of an outcome say in a column; whoever answers without a status has completed."""
    is_answered = outcome in ("matched", "orphaned")
    return texts.get(column, "completed" if column == "status" and is_answered else None)


def billed_elsewhere(meters: Iterable[Meter], found: Mapping[str, Quantity], priced: Container[str]) -> dict[str, Any]:
    """Of each meter how much of its quantity another one bills: a unit is paid once, where its price is most specific.

    `found` is of `quantities`; `priced` are the meters that have a price.
    """
    known = {meter.name: meter for meter in meters}
    elsewhere: dict[str, Any] = {}
    for name, quantity in found.items():
        wholes = []
        meter = known[name]
        while meter.within is not None and INCLUDED.get(meter.sums or "") == known[meter.within].sums:
            meter = known[meter.within]
            if found.get(meter.name):
                wholes.append(meter.name)
        if not quantity or not wholes:
            continue
        if name not in priced:
            elsewhere[name] = quantity
            continue
        whole = next((meter for meter in wholes if meter in priced), wholes[-1])
        elsewhere[whole] = elsewhere.get(whole, 0) + quantity
    return {name: min(quantity, found[name]) for name, quantity in elsewhere.items()}
