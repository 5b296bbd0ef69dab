"""The rules of a valid envelope: limits and text formats. Contracts declare what `data` holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

SPECVERSION = "1.0"
TIME_SOURCE, RECEIPT = "timesource", "receipt"
"""The extension that records where `time` is from, and its value where the receiver filled it in."""

MAX_SEQUENCE_DIGITS = 18
MAX_SEQUENCE = 10**MAX_SEQUENCE_DIGITS - 1
"""In any notation. A number of this many digits fits 64 bits, and so does the end of a range that it closes."""

RFC3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
"""A date and time with its offset; whether the day exists is the calendar's matter. Leap seconds are refused."""

ATTRIBUTE_CONTROLS = r"[\x00-\x1f\x7f-\x9f]"
"""Characters that a CloudEvents attribute must not hold."""


def glob_expression(patterns: Iterable[str]) -> str:
    r"""The regular expression, valid in Python and Java, of a text that any of `patterns` matches whole.

    `*` is any text, `?` one character, everything else is itself. Without a pattern nothing matches.
    """
    alternatives = "|".join("".join(_GLOB.get(character, re.escape(character)) for character in p) for p in patterns)
    return rf"(?s)\A(?:{alternatives or '(?!)'})(?![\s\S])"


_GLOB = {"*": ".*", "?": "."}
