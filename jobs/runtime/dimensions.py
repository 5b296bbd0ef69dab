"""The key `dimensions` of a configuration: what usage can be grouped by besides account, model and meter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from jobs.runtime.meters import OF_OUTCOMES, PlainName

MOST_DIMENSIONS = 4
OF_A_LIST = frozenset(
    (
        *("price_version", "unit_price", "quantity", "amount", "unpriced_quantity", "corrected", "state"),
        *("window_start", "window_end", "is_other", "meter"),
    )
)
"""What a list of usage has as a column of its own."""
RESERVED = OF_OUTCOMES - {"user_id"} | OF_A_LIST | {"content_hash"}
"""What an outcome or a list of usage says already, or what every event has another of."""

Dimensions = Annotated[tuple[PlainName, ...], Field(max_length=MOST_DIMENSIONS)]


def refuse_unfit_dimensions(names: Sequence[str]) -> None:
    """Raises ValueError where one stands twice, or is none."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} stands there twice")
        if name in RESERVED:
            raise ValueError(f"{name} is no dimension: usage has it already, or every event has another")
