"""A contract as the validator uses it: the fields of an event, what each may hold, and the columns they fill."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from metering.contracts.includes import Includes
from metering.vocabulary import Family, Reason

Path = tuple[str, ...]
"""The path of a value in an event: ("data", "usage", "input")."""


class Kind(StrEnum):
    """What a field holds, and so what its column is."""

    TEXT = "text"
    INTEGER = "integer"
    """Written without a fraction and without an exponent: `12`, never `12.0`."""
    DECIMAL = "decimal"
    """A number below 10^11 with at most six decimals, kept exactly: a quantity."""
    DOUBLE = "double"
    """A number that is never billed."""
    BOOLEAN = "boolean"


NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)


@dataclass(frozen=True)
class Field:
    """A value that Weir reads of an event. Null is the same as nothing."""

    path: Path
    kind: Kind
    column: str
    """Of the journal."""
    reason: Reason = Reason.INVALID_DATA
    is_required: bool = False
    values: tuple[str, ...] | None = None
    """The texts it may hold; None: any."""
    max_bytes: int | None = None
    """Of a text, in UTF-8."""
    minimum: Decimal | None = None
    maximum: Decimal | None = None
    takes_text: bool = False
    """Of a number: whether a string that holds one, written as in JSON, is that number."""

    @property
    def pointer(self) -> str:
        """The path as a JSON pointer (RFC 6901)."""
        return pointer(self.path)


@dataclass(frozen=True)
class Contract:
    """What an event of one type is."""

    type: str
    family: Family
    fields: tuple[Field, ...]
    """In the order in which they are validated: the first that is wrong gives the reason."""
    description: str = ""
    includes: Includes = ()
    """Which of the quantities that its events report are part of others."""
    unnest: Path | None = None
    """The array whose elements are events, if there is one (`metering.contracts.unnest`)."""


def pointer(path: Path) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in path)
