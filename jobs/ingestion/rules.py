"""What a valid event is: the closed set of reasons to reject one, and limits. Pure; `classify` is the Spark form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum


class Reason(StrEnum):
    """Why a record is rejected: a dead letter's `reason` and a metric's label. The first that holds is given."""

    UNSTAMPED = "unstamped"
    """Its producer set when it was received; as it came to the topic before that had LogAppendTime, for one."""
    NOT_UTF8 = "not_utf8"
    NUL_CHARACTER = "nul_character"
    """An escaped U+0000, which no text column of a database can hold; looked for before the JSON is read."""
    MALFORMED = "malformed"
    """Not one RFC 8259 object: broken, empty, a second document, a duplicate key, nested deeper than 999 levels."""
    INVALID_SPECVERSION = "invalid_specversion"
    INVALID_ID = "invalid_id"
    INVALID_SOURCE = "invalid_source"
    INVALID_TYPE = "invalid_type"
    MISSING_SUBJECT = "missing_subject"
    INVALID_SUBJECT = "invalid_subject"
    INVALID_TIME = "invalid_time"
    INVALID_SENTTIME = "invalid_senttime"
    INVALID_SEQUENCE = "invalid_sequence"
    """`sequence` is no whole number from 0 to 10^18 - 1, or `sourceepoch` is neither text nor a whole number."""
    INVALID_DATA = "invalid_data"
    """`data` is no object, or a field of it has the wrong type."""
    INVALID_REQUEST_ID = "invalid_request_id"
    INVALID_MODEL = "invalid_model"
    INVALID_STATUS = "invalid_status"
    INVALID_USAGE_SOURCE = "invalid_usage_source"
    INVALID_TOKENS = "invalid_tokens"
    INVALID_CACHED = "invalid_cached"
    INVALID_LATENCY = "invalid_latency"
    TOO_OLD = "too_old"
    FUTURE = "future"
    INVALID_CATALOG_CHANGE = "invalid_catalog_change"
    TOO_LARGE = "too_large"
    """Key and value have more bytes, unpacked, than `max_record_bytes`; given before any other."""
    UNREADABLE = "unreadable"
    """It ended the driver each time that it was read, also when nothing else was. Given before any other."""
    SKIPPED = "skipped"
    """An operator said so, before it was read. Given before any other."""


class Status(StrEnum):
    """How the model's answer ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"


class UsageSource(StrEnum):
    """Who counted the tokens."""

    PROVIDER = "provider"
    ESTIMATED = "estimated"
    PARTIAL = "partial"


SPECVERSION = "1.0"

MAX_TEXT_BYTES = 512
"""A longer name would not fit a Postgres index (2,704 bytes for a whole key), and one bad event would stop a job."""

MAX_TOKENS = 10**10
"""More tokens in one request are a fault of the producer."""

MAX_LATENCY_MS = 10**12
"""Thirty years; what is longer, or not finite, is a fault of the producer."""

MAX_SEQUENCE_DIGITS = 18
MAX_SEQUENCE = 10**MAX_SEQUENCE_DIGITS - 1
"""However it is written. Any number of so many digits fits 64 bits, and so does the end of a range that it closes."""

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
