"""What conditions of prices name in the traffic's catalog: a column of events, and in which band their input is."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from traffic.meters import REPORTED, Used

OPERATION, CONTEXT = "operation", "context"
SHORT, LONG = "short", "long"
MAX_SHORT_TOKENS = 400
"""Tokens of input: about half of all calls have more."""
OF_CONTEXT = REPORTED[0]

PRICE_ATTRIBUTES: tuple[Any, ...] = (
    OPERATION,
    {CONTEXT: {"of": OF_CONTEXT, "bands": {SHORT: str(MAX_SHORT_TOKENS), LONG: None}}},
)
"""As a stack lists them in its configuration, and as its applications write them down."""


def attributes_of(texts: Mapping[str, str], reported: Used) -> Mapping[str, str]:
    """What an outcome says of each, by what its events say in texts and what the report that bills has; what it does
    not say is left out.
    """
    found = {OPERATION: texts[OPERATION]} if OPERATION in texts else {}
    tokens = reported.get(OF_CONTEXT)
    if tokens is not None:
        found[CONTEXT] = SHORT if Decimal(tokens) <= MAX_SHORT_TOKENS else LONG
    return found
