"""Numbers written as texts → numbers, before a block of records is read: the block's reader takes no text for a number.

The text between the quotes stays as it is, so a record stays as valid as it was, and the reader decides what is a
number. Some contracts accept texts and others do not: records of the others are read one by one, as sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from jobs.ingestion.strict_json import NUMBER
from metering.contracts.keywords import ENVELOPE, ENVELOPE_OTHER
from metering.contracts.model import NUMBERS, Contract, Path

PLAIN = re.compile("[A-Za-z0-9_]+")
"""Of such a name no part can be anything but a name, also in a document that is broken."""


@dataclass(frozen=True)
class NumberTexts:
    """Where some contract takes texts for numbers."""

    paths: frozenset[Path] = frozenset()
    names: frozenset[str] = frozenset()
    """Keys whose texts are rewritten."""
    refusing: frozenset[str] = frozenset()
    """Types of events whose contract has a number at such a key, and takes no text for it."""

    @classmethod
    def of(cls, contracts: Collection[Contract]) -> NumberTexts:
        """What these contracts take."""
        fields = [(contract.type, field) for contract in contracts for field in contract.fields]
        paths = frozenset(field.path for _, field in fields if field.takes_text)
        # An attribute of that name is always a text.
        taken = {path[-1] for path in paths} - {*ENVELOPE, *ENVELOPE_OTHER}
        names = frozenset(name for name in taken if PLAIN.fullmatch(name))
        refusing = {
            of_type
            for of_type, field in fields
            if field.path[-1] in names and field.kind in NUMBERS and not field.takes_text
        }
        return cls(paths, names, frozenset(refusing))

    @cached_property
    def _written(self) -> str:
        # A quote behind a brace or a comma begins a key, or ends a text and breaks the document.
        key = rf'[{{,][ \t\r\n]*"(?:{"|".join(sorted(self.names))})"[ \t\r\n]*:[ \t\r\n]*'
        return rf'({key})"({NUMBER.pattern})"'

    def unquoted(self, texts: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Documents with their numbers written as such, and whether a document is another now; null stays null."""
        if not self.names:
            return texts, pl.Series([False]).new_from_index(0, len(texts))
        is_written = texts.str.contains(self._written).fill_null(value=False)
        if is_written.any():
            texts = texts.scatter(
                is_written.arg_true(), texts.filter(is_written).str.replace_all(self._written, "$1$2")
            )
        return texts, is_written
