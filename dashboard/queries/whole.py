"""Sums of whole quantities as the pages hold them: Postgres adds up as numeric, which has no largest number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """`row` with the columns `names` as int; null stays None. Raises ValueError for one that has a fraction."""
    return {**row, **{name: _integer(name, row[name]) for name in names}}


def _integer(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if int(value) != value:
        raise ValueError(f"{name} is {value}, which is no whole number")
    return int(value)
