"""Contracts that a user might declare."""

from __future__ import annotations

from typing import Any


def completions_with(**properties: dict[str, Any]) -> dict[str, Any]:
    """Completions as Weir ships them, whose data has more fields."""
    shipped = "ai.inference.completion.v1"
    more = {"data": {"properties": properties}}
    return {"$id": shipped, "allOf": [{"$ref": f"weir:{shipped}"}], "properties": more}


GPU = completions_with(
    gpu_seconds={"type": "number", "minimum": 0, "maximum": 86_400, "x-weir-column": "gpu_seconds"},
    images={"type": "integer", "minimum": 0, "x-weir-column": "images"},
)
"""A quantity with decimals, and a whole one."""
