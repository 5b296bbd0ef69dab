"""The meters of the traffic, and how much of each a call uses: written once more, for a truth that is nobody's copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    @classmethod
    def of(cls, name: str, said: Mapping[str, Any]) -> Meter:
        """From what `meters` of a configuration says of it."""
        sums, expected = said.get("sum"), said.get("expected")
        return cls(name, sums, sums in REPORTED if expected is None else expected)


DEFAULT = (*(Meter(name, name, is_expected=True) for name in sorted(REPORTED)), Meter(METERS[0]))
"""By name, as those that are declared."""


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


def quantities(meters: Iterable[Meter], outcome: str, told: Used) -> dict[str, Quantity]:
    """How much of each meter an outcome is, by what its completion told; a meter of which it is nothing is left out."""
    found: dict[str, Quantity] = {}
    for meter in meters:
        if meter.sums is None:
            if outcome in ("matched", "abandoned"):
                found[meter.name] = 1
        elif told.get(meter.sums) is not None or (meter.is_expected and outcome == "matched"):
            found[meter.name] = told.get(meter.sums)
    return found
