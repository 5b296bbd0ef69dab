"""Pages of a list: each begins after the last row of the one before, however many rows came or went meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Page:
    """At most `limit` rows, which come after the row with the key `after` (empty: from the first on)."""

    limit: int
    after: tuple[Any, ...] = ()


def paged(statement: str, key: Sequence[str], page: Page | None) -> tuple[str, dict[str, Any]]:
    """The rows of one page of `statement`, in the order of `key` with nulls last; and further parameters.

    `key` are columns of it that no two rows have in common. Without a page: the statement as it is. Raises ValueError
    for a key of another length.
    """
    if page is None:
        return statement, {}
    if page.after and len(page.after) != len(key):
        raise ValueError(f"a key of this list has {len(key)} values, not {len(page.after)}")
    after = f"WHERE {_follows(key, 0)}" if page.after else ""
    parameters: dict[str, Any] = {f"after_{place}": value for place, value in enumerate(page.after)}
    return (
        f"SELECT * FROM ({statement}) AS listed {after} ORDER BY {', '.join(key)} LIMIT %(page_limit)s",
        {**parameters, "page_limit": page.limit},
    )


def _follows(key: Sequence[str], place: int) -> str:
    """Whether a row comes after the parameters `after_0`, …: a null is the largest value."""
    if place == len(key):
        return "false"
    column, value = key[place], f"%(after_{place})s"
    rest = _follows(key, place + 1)
    return (
        f"({column} > {value} OR {column} IS NULL AND {column} IS DISTINCT FROM {value} "
        f"OR {column} IS NOT DISTINCT FROM {value} AND {rest})"
    )
