"""Decimals as text: all significant digits, no trailing zeros."""

from __future__ import annotations

from decimal import Decimal


def plain(value: Decimal) -> str:
    """A decimal without exponent and without trailing zeros, every other digit kept."""
    digits = format(value, "f")
    shorter = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if shorter == "-0" else shorter
