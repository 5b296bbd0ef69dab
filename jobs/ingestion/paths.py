"""The paths that are read of an event, and the columns that they become, for both readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.ingestion import strict_json
from jobs.ingestion.number_texts import NumberTexts
from jobs.ingestion.rules import TIME_SOURCE
from metering.contracts.keywords import ENVELOPE
from metering.contracts.model import Contract, Kind, Path, pointer

ARROW = {
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.DECIMAL: pa.decimal128(17, 6),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
}
POLARS: dict[Kind, pl.DataType] = {
    Kind.TEXT: pl.String(),
    Kind.INTEGER: pl.Int64(),
    Kind.DECIMAL: pl.Decimal(17, 6),
    Kind.DOUBLE: pl.Float64(),
    Kind.BOOLEAN: pl.Boolean(),
}

SEQUENCE, EPOCH = ("sequence",), ("sourceepoch",)
"""Attributes that are texts or whole numbers; of the two columns of each at most one has a value."""
NUMBER = " number"
EITHER: dict[str, pl.DataType] = {"": pl.String(), NUMBER: pl.Int64()}
"""Suffixes of such an attribute's pointer: the columns of its value as a text, and as a number."""
DATA = ("data",)
ATTRIBUTES: tuple[Path, ...] = tuple((name,) for name in (*ENVELOPE, "senttime", "data_base64", TIME_SOURCE))
"""What Weir itself reads of an event."""


@dataclass(frozen=True)
class Paths:
    """What is read of an event: the fields of all contracts, and the attributes that Weir itself needs."""

    fields: dict[Path, Kind] = field(default_factory=dict)
    number_texts: NumberTexts = field(default_factory=NumberTexts)
    arrays: dict[str, Path] = field(default_factory=dict)
    """By event type: the array whose elements are events."""

    @classmethod
    def of(cls, contracts: Collection[Contract]) -> Paths:
        """All that some contract reads."""
        found = dict.fromkeys(ATTRIBUTES, Kind.TEXT)
        found |= {part.path: part.kind for contract in contracts for part in contract.fields}
        arrays = {contract.type: contract.unnest for contract in contracts if contract.unnest is not None}
        return cls(found, NumberTexts.of(contracts), arrays)

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """The columns of what was read.

        Each field by its pointer, null where it is missing. `/data`: whether it is an object. `unreadable`: the
        `Reason` for which nothing could be read. `problem`: what is wrong with the JSON. `misread`: values of another
        kind than the contracts declare there, also texts that are taken for numbers (`violations.misread_text`).
        """
        return {
            **{pointer(path): POLARS[kind] for path, kind in self.fields.items()},
            **{pointer(path) + behind: kind for path in (SEQUENCE, EPOCH) for behind, kind in EITHER.items()},
            pointer(DATA): pl.Boolean(),
            **dict.fromkeys(("unreadable", "problem", "misread"), pl.String()),
        }

    @cached_property
    def tree(self) -> strict_json.Tree:
        """The keys that are read."""
        return strict_json.tree_of((*self.fields, SEQUENCE, EPOCH, DATA))

    @staticmethod
    def tree_of_elements(contract: Contract) -> strict_json.Tree:
        """The keys that are read of an event with an array: what only other contracts read is in no element."""
        assert contract.unnest is not None, "only used then"
        fields = [field.path for field in contract.fields]
        return strict_json.tree_of((*ATTRIBUTES, *fields, SEQUENCE, EPOCH, DATA, contract.unnest))

    @cached_property
    def typed(self) -> list[tuple[Path, Callable[[Any], Any]]]:
        """Converts what a strict reader found to a field's value."""
        typed = strict_json.TYPED
        return [
            (path, strict_json.or_text(typed[kind]) if path in self.number_texts.paths else typed[kind])
            for path, kind in self.fields.items()
        ]

    @cached_property
    def arrow_schemas(self) -> list[pa.Schema]:
        """Of a block: one for each way in which its sources write the attributes that are texts or numbers."""
        return [
            pa.schema(_members({**self.fields, SEQUENCE: sequence, EPOCH: epoch, DATA: None}))
            for sequence in (Kind.TEXT, Kind.INTEGER)
            for epoch in (Kind.TEXT, Kind.INTEGER)
        ]

    @cached_property
    def flat(self) -> dict[tuple[bool, bool], list[pl.Expr]]:
        """A block's columns → those of `schema`, by whether SEQUENCE and EPOCH are texts in the block."""
        return {(first, second): self._flat((first, second)) for first in (False, True) for second in (False, True)}

    def _flat(self, are_texts: tuple[bool, bool]) -> list[pl.Expr]:
        columns = [_at(path).alias(pointer(path)) for path in self.fields]
        for path, is_text in zip((SEQUENCE, EPOCH), are_texts, strict=True):
            for behind, kind in EITHER.items():
                has = (behind == "") is is_text
                columns.append((pl.col(path[0]) if has else pl.lit(None, kind)).alias(pointer(path) + behind))
        columns.append(pl.col("data").is_not_null().alias(pointer(DATA)))
        return columns + [pl.lit(None, pl.String).alias(name) for name in ("unreadable", "problem", "misread")]

    @cached_property
    def decimals_as_text(self) -> str | None:
        """Finds records in which a decimal may be written as a text, which the block's reader would take."""
        names = [path[-1] for path, kind in self.fields.items() if kind is Kind.DECIMAL]
        # A key may also be written with escapes, but in practice not of letters, digits or underscores.
        is_plain = all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in names)
        escaped = r"\\u00[0-7]" if is_plain else r"\\"
        return rf'"(?:{"|".join(map(re.escape, names))})"\s*:\s*"|{escaped}' if names else None


def _at(path: Path) -> pl.Expr:
    expression = pl.col(path[0])
    for name in path[1:]:
        expression = expression.struct.field(name)
    return expression


def _members(kinds: dict[Path, Kind | None]) -> list[pa.Field]:
    """The fields of an object; a path with None is an object, whether or not something in it is read."""
    names = dict.fromkeys(path[0] for path in kinds)
    members = []
    for name in names:
        kind = kinds.get((name,))
        below = {path[1:]: kind_below for path, kind_below in kinds.items() if path[0] == name and len(path) > 1}
        members.append(pa.field(name, ARROW[kind] if kind is not None else pa.struct(_members(below))))
    return members
