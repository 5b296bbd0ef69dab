"""Names and numbers in a configuration: a name is no longer than events may have it, a number is as it was written."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from metering.limits import MAX_NAME_BYTES
from metering.texts import encodable


def as_written(number: Any) -> Any:
    """The digits of a number that YAML has read as a float: its shortest text is what was written."""
    return str(number) if isinstance(number, float) else number


def _as_long_as_in_events(name: str) -> str:
    if encodable(name) != name:
        raise ValueError("contains U+0000 or half of a surrogate pair, which no event may contain")
    length = len(name.encode())
    if not 1 <= length <= MAX_NAME_BYTES:
        raise ValueError(f"has {length} bytes, but must have 1 to {MAX_NAME_BYTES}")
    return name


Name = Annotated[
    str,
    AfterValidator(_as_long_as_in_events),
    # JSON Schema counts characters: it lets pass what has more bytes, which the chart's templates refuse, as this does.
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES}),
]
