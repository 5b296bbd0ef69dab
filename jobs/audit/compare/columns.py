"""A table compared with its expected rows: typed columns, and the first difference is reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Wrong:
    """How many rows are not as they must be, of how many, and the first of them in words."""

    examined: int = 0
    found: int = 0
    first: str = ""

    def __add__(self, other: Wrong) -> Wrong:
        return Wrong(self.examined + other.examined, self.found + other.found, self.first or other.first)


@dataclass(frozen=True)
class Compared:
    """A table whose rows are known by `key`: `values` must be equal. `name`: one row in words, with these in braces.

    `absent`: what a row that is not there says as well as if it were; empty where its absence is a difference.
    """

    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    absent: Mapping[str, Any]

    def unequal(self, stored: pl.DataFrame, made: pl.DataFrame) -> Wrong:
        """Both with `key` and `values`, each key once: what is stored, and what must be."""
        both = (
            made.select(*self.key, *self.values, is_made=True)
            .join(
                stored.select(*self.key, *self.values, is_stored=True),
                on=self.key,
                how="full",
                nulls_equal=True,
                coalesce=True,
                suffix=_STORED,
            )
            .with_columns(pl.col("is_made", "is_stored").fill_null(False))
        )
        for name, value in self.absent.items():
            both = both.with_columns(pl.col(name, name + _STORED).fill_null(value))
        # A row that came back to 0 may have lost its price.
        differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name + _STORED)) for name in self.values)
        is_alone = pl.lit(False) if self.absent else ~(pl.col("is_made") & pl.col("is_stored"))
        wrong = both.filter(differs | is_alone)
        examined = int(both["is_stored"].sum())
        if wrong.is_empty():
            return Wrong(examined)
        first = wrong.sort(self.key, nulls_last=True).row(0, named=True)
        return Wrong(examined, len(wrong), self._sentence(first))

    def _sentence(self, row: Mapping[str, Any]) -> str:
        side = "" if row["is_made"] else _STORED
        known = {name: row[name] for name in self.key} | {name: row[name + side] for name in self.values}
        place = self.name.format(**{name: value_text(value) for name, value in known.items()})
        if not self.absent and not row["is_stored"]:
            return f"{place} is missing"
        if not self.absent and not row["is_made"]:
            return f"{place} comes of nothing"
        values = [(name, row[name + _STORED], row[name]) for name in self.values]
        return f"{place}: " + ", ".join(
            f"{name} is {value_text(found)} instead of {value_text(must)}"
            for name, found, must in values
            if found != must
        )


_STORED = "_stored"


def key_text(values: Iterable[Any]) -> str:
    """A key in words."""
    return ", ".join(value_text(value) for value in values)


def value_text(value: Any) -> str:
    """A value as a sentence has it."""
    if value is None:
        return "nothing"
    return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}".replace(".000000", "") if hasattr(value, "tzinfo") else str(value)
