"""`where` of a meter: which values a column of the events may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from metering.limits import MAX_NAME_BYTES, PLAIN_NAME
from metering.meters import MAX_VALUES, Where

PlainName = Annotated[str, Field(pattern=f"^{PLAIN_NAME}$")]


def _one_or_more(given: Any) -> Any:
    listed = given if isinstance(given, list) else [given]
    is_text = [isinstance(value, str) and 1 <= len(value.encode()) <= MAX_NAME_BYTES for value in listed]
    is_fit = [fits or isinstance(value, bool) for value, fits in zip(listed, is_text, strict=True)]
    if not all(is_fit) or not 1 <= len(listed) <= MAX_VALUES:
        raise ValueError(
            f"a column is compared with a text of 1 to {MAX_NAME_BYTES} bytes, true or false, or a list of 1 to "
            f"{MAX_VALUES} of them"
        )
    return given


_Text = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]
_Listed = Annotated[list[_Text | bool], Field(min_length=1, max_length=MAX_VALUES)]
Values = Annotated[_Text | bool | _Listed, BeforeValidator(_one_or_more)]
"""What a column may be: a text or a boolean, or one of several."""


def conditions(where: Mapping[str, Values]) -> Where:
    """The conditions of `where`, in a canonical order: writing them otherwise changes nothing."""
    listed = {column: values if isinstance(values, list) else [values] for column, values in where.items()}
    return tuple((column, tuple(sorted(set(values), key=str))) for column, values in sorted(listed.items()))
