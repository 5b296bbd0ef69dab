"""The meters of the traffic, and how much of each a call uses: written once more, for a truth that is nobody's copy."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

REPORTED = ("input_tokens", "output_tokens", "cached_tokens")
"""What completions report, by its name in their `data`; its meter has the same name."""
METERS = ("requests", *REPORTED)

Used = Mapping[str, int | None]
"""Of each of REPORTED how much; None: the gateway does not know it, which is not 0."""


def drawn(rng: Random) -> Used:
    """What a call used."""
    input_tokens = int(rng.lognormvariate(6.0, 1.3)) + 1
    return {
        "input_tokens": input_tokens,
        "output_tokens": int(rng.lognormvariate(5.0, 1.2)),
        "cached_tokens": rng.choice((0, 0, input_tokens // 2, input_tokens)),
    }
