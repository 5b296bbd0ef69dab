"""What is read of a span, whatever it was encoded as, and how many spans a request may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_SPANS = 50_000
"""Of one request, whatever they report, with the resources and scopes around them. A Collector's batches have 8,192."""
Attribute = str | bool | int | float
Attributes = Mapping[str, Attribute]
TRACE_ID, SPAN_ID = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{16}")


class NotOtlp(ValueError):
    """A body that is no request of spans."""


class TooLarge(ValueError):
    """A request with more than a limit allows; the message names it."""


@dataclass(frozen=True)
class SpanRecord:
    """What is read of a span. Attributes that are no text, number or boolean are left out."""

    trace_id: str = ""
    """In hexadecimal; empty where it is not valid, as is the span's."""
    span_id: str = ""
    ended_nanos: int = 0
    is_error: bool = False
    attributes: Attributes = field(default_factory=dict)
    resource: Attributes = field(default_factory=dict)
    problem: str | None = None
    """Why it could not be read."""

    @property
    def id(self) -> str:
        """`trace id:span id`; empty without either."""
        return f"{self.trace_id}:{self.span_id}" if self.trace_id and self.span_id else ""


class Count:
    """Counts resources, scopes and spans of a request."""

    def __init__(self) -> None:
        self._found = 0

    def add(self) -> None:
        """Raises TooLarge."""
        self._found += 1
        if self._found > MAX_SPANS:
            raise TooLarge(f"a request has at most {MAX_SPANS} spans, with their resources and scopes")


def valid_id(given: object, form: re.Pattern[str]) -> str:
    """An id as it is written; empty for what is none, as that of zeros."""
    text = given.lower() if isinstance(given, str) else ""
    return text if form.fullmatch(text) and text.strip("0") else ""
