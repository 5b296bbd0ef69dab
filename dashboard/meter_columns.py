"""Columns for meters, whose configured names may be any, such as `state` or `amount`."""

from __future__ import annotations

from collections.abc import Mapping

from dashboard.table import Row, Value
from dashboard.wording import spaced


def with_meters(front: Row, quantities: Mapping[str, Value], back: Row) -> dict[str, Value]:
    """A row with a column for each meter between those of `front` and `back`; none takes the place of another."""
    taken = front.keys() | back.keys()
    columns = {}
    for meter, quantity in quantities.items():
        label = spaced(meter)
        columns[f"{label} (meter)" if label in taken else label] = quantity
    return {**front, **columns, **back}
