"""The meters of the traffic, and how much of each a call uses: written once more, for a truth that is nobody's copy."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

REPORTED = ("input_tokens", "output_tokens", "cached_tokens")
"""What all completions report, by its column; its meter has the same name."""
METERS = ("requests", *REPORTED)
"""The meters of a stack that declares none."""
REASONING, SECONDS = "reasoning_tokens", "gpu_seconds"
"""What some gateways report besides, by its column."""

Quantity = int | Decimal | None
Used = Mapping[str, Quantity]
"""Of each column how much; None: the gateway does not know it, which is not 0."""


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
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns of its events, and which values of each it asks for."""

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> Meter:
        """From what `meters` of a configuration says of it."""
        sums, expected, where = document.get("sum"), document.get("expected"), document.get("where") or {}
        conditions = tuple(
            (column, tuple(value) if isinstance(value, list) else (value,)) for column, value in where.items()
        )
        return cls(name, sums, sums in REPORTED if expected is None else expected, document.get("within"), conditions)


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
    }


def quantities(
    meters: Iterable[Meter], outcome: str, reported: Used, texts: Mapping[str, str], *, is_of_request: bool = True
) -> dict[str, Quantity]:
    """How much of each meter an outcome is, by what its completion told; a meter of which it is nothing is left out.

    `texts`: what its events say besides, by column. What is of no request counts as none, and need not report anything.
    """
    found: dict[str, Quantity] = {}
    for meter in meters:
        if any(_text(column, outcome, texts) not in values for column, values in meter.where):
            continue
        if meter.sums is None:
            if is_of_request and outcome in ("matched", "abandoned"):
                found[meter.name] = 1
        elif reported.get(meter.sums) is not None or (is_of_request and meter.is_expected and outcome == "matched"):
            found[meter.name] = reported.get(meter.sums)
    return found


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
