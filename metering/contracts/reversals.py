"""Reversals: the journal columns that they fill, and the contracts of an installation without reversals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metering.vocabulary import Family

REASON, METER, QUANTITY = "reversal_reason", "reversal_meter", "reversal_quantity"
"""The reason, and what is reversed: a meter (null: all) and a quantity (null: all that it bills)."""


def is_reversal(document: Mapping[str, Any]) -> bool:
    """Whether a contract's document declares reversals."""
    return document.get("x-weir-family") == Family.REVERSAL.value


def without_reversals(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The shipped contracts as they were before there were reversals."""
    return {name: document for name, document in documents.items() if not is_reversal(document)}
