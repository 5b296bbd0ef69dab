"""What a stack declares that is to bill all that the traffic reports; of any other the truth has what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traffic.attributes import PRICE_ATTRIBUTES
from traffic.events import COMPLETION, COMPLETION_OF_SECONDS, TOKENS, TRACE, USAGE
from traffic.meters import CONTENT, METERS, REASONING, REPORTED, SEATS, SECONDS, STORED, USER

MAX_SECONDS = "86400"
_INPUT, _OUTPUT, _CACHED = REPORTED

CONTRACT: Mapping[str, Any] = {
    "$id": COMPLETION_OF_SECONDS,
    "allOf": [{"$ref": f"weir:{COMPLETION}"}],
    "properties": {
        "data": {
            "properties": {
                SECONDS: {"type": ["number", "null"], "minimum": 0, "x-weir-column": SECONDS},
                SEATS: {"type": ["integer", "null"], "minimum": 0, "x-weir-column": SEATS},
                STORED: {"type": ["number", "null"], "minimum": 0, "x-weir-column": STORED},
                CONTENT: {"type": ["string", "null"], "x-weir-column": CONTENT},
            },
        },
    },
}
"""Completions of the gateway that says how long a processor was busy, how many seats its account has and how much is
stored for it, and which content it answered with.
"""
CONTRACT_OF_TRACES: Mapping[str, Any] = {
    "$id": TRACE,
    "allOf": [{"$ref": f"weir:{USAGE}"}],
    "x-weir-unnest": "/data/calls",
}
"""Events of an agent's run, each of which has several calls."""
_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10_000_000_000}
CONTRACT_OF_TOKENS: Mapping[str, Any] = {
    "$id": TOKENS,
    "x-weir-family": "quantity",
    "properties": {
        "data": {
            "required": ["model"],
            "properties": {
                "model": {"type": "string", "x-weir-column": "model"},
                **{
                    name: {**_NUMBER, "x-weir-column": name, "x-weir-number": "text_or_number"}
                    for name in (_INPUT, _OUTPUT)
                },
            },
        },
    },
}
"""Events of a gateway that names no request and sends one for each type of tokens, with its number as text."""
REVERSAL: Mapping[str, Any] = {"sources": ["desk/*"]}
"""Who may take usage back."""
CONTRACTS = (CONTRACT, CONTRACT_OF_TRACES, CONTRACT_OF_TOKENS)

DECLARED: Mapping[str, Any] = {
    "meters": {
        METERS[0]: {"unit": "request", "count": "outcomes"},
        _INPUT: {"unit": "token", "sum": _INPUT},
        _OUTPUT: {"unit": "token", "sum": _OUTPUT},
        _CACHED: {"unit": "token", "sum": _CACHED, "within": _INPUT},
        REASONING: {"unit": "token", "sum": REASONING, "within": _OUTPUT},
        SECONDS: {"unit": "second", "sum": SECONDS, "max_per_event": MAX_SECONDS},
        "answers": {"unit": "answer", "count": "outcomes", "once_per": {"column": CONTENT, "within": "PT1H"}},
        "active_users": {"unit": "user", "unique": USER, "period": "month"},
        SEATS: {"unit": "seat", "max": SEATS, "period": "day"},
        STORED: {"unit": "gigabyte", "latest": STORED, "period": "month"},
    },
    "dimensions": ["api_key_id"],
    "price_attributes": list(PRICE_ATTRIBUTES),
}
"""The same for every job."""
_NOT_BY_OUTCOME = ("period", "once_per")
DECLARED_BY_OUTCOME: Mapping[str, Any] = {
    **DECLARED,
    "meters": {
        name: meter for name, meter in DECLARED["meters"].items() if not any(key in meter for key in _NOT_BY_OUTCOME)
    },
}
"""The same for a stack whose other customers have prices of these meters alone."""
