"""Records that the validator fails on, which is our fault: each is isolated from its batch and becomes `unreadable`.

An error costs the batch further calls of the validator, and never a restart. If the validator also fails on a good
record, or memory runs out, no record is at fault: those errors are raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import polars as pl

from metering.texts import error_text

MAX_ERROR_CHARACTERS = 500
ERRORS = (Exception, pl.exceptions.PanicException)
"""What the validator may raise. A panic of Polars is no `Exception`."""


class Sliceable(Protocol):
    """Items in an order: an Arrow table, a series."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int, /) -> Self:
        """Some of them."""


Items = TypeVar("Items", bound=Sliceable)
Result = TypeVar("Result")


def validated_in_parts(
    items: Items,
    validate: Callable[[Items], Result],
    unreadable: Callable[[Items, str], Result],
    check_validator: Callable[[], object],
) -> list[Result]:
    """`validate` of all items at once; where it raises, of halves, and so on down to a single item.

    `unreadable` makes the result of one item from the text of its error. `check_validator` validates a good item: what
    it raises is raised, and no item is blamed.
    """
    found: list[Result] = []
    pending, is_checked = [items], False
    while pending:
        part = pending.pop()
        try:
            found.append(validate(part))
        except MemoryError:
            raise
        except ERRORS as error:
            if not len(part):
                raise
            if not is_checked:
                check_validator()
                is_checked = True
            if len(part) == 1:
                found.append(unreadable(part, error_text(error, MAX_ERROR_CHARACTERS)))
                continue
            half = len(part) // 2
            pending += [part.slice(half, len(part) - half), part.slice(0, half)]
    return found
