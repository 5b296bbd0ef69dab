"""What pydantic refuses, as one sentence: which setting, what it is, and what it must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MUST: Mapping[str, str] = {
    "greater_than": "be above {gt}",
    "greater_than_equal": "be at least {ge}",
    "less_than": "be below {lt}",
    "less_than_equal": "be at most {le}",
    "multiple_of": "be a multiple of {multiple_of}",
    "finite_number": "be a finite number",
    "decimal_max_digits": "have at most {max_digits} digits",
    "decimal_max_places": "have at most {decimal_places} decimals",
    "decimal_whole_digits": "have at most {whole_digits} digits before the point",
    "string_too_short": "have at least {min_length} characters",
    "string_too_long": "have at most {max_length} characters",
    "string_pattern_mismatch": "match {pattern}",
    "too_short": "have at least {min_length} entries",
    "too_long": "have at most {max_length} entries",
    "literal_error": "be {expected}",
    "enum": "be {expected}",
    "timezone_aware": "have an offset, such as Z or +02:00",
}
"""What must be otherwise, by pydantic's type of error."""
_KINDS: Mapping[str, str] = {
    "int": "be a whole number",
    "float": "be a number",
    "decimal": "be a number",
    "bool": "be true or false",
    "string": "be a text",
    "list": "be a list",
    "tuple": "be a list",
    "set": "be a list",
    "dict": "be an object with fields",
    "model": "be an object with fields",
}
"""The same of a value of another kind, by how its type of error begins."""


def sentence(problem: Mapping[str, Any], field: str | None = None) -> str:
    """One of `ValidationError.errors()`, such as `jobs.joins.grace_seconds is -1: must be at least 0`.

    `field` names it otherwise than its place does. The value is shown where it is one, and `input` is there.
    """
    name = ".".join(map(str, problem["loc"])) if field is None else field
    if problem["type"] == "missing":
        return f"{name} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{name} is not a known field"
    value = problem.get("input", {})
    is_shown = bool(name) and (value is None or isinstance(value, str | int | float))
    found = f"{name} is {_shown(value)}" if is_shown else name
    what = reason(problem) if problem["type"] == "value_error" else f"must {_must(problem)}"
    return f"{found}: {what}" if found else what


def reason(problem: Mapping[str, Any]) -> str:
    """The message, in the words of the validator that raised it."""
    return str(problem["msg"]).removeprefix("Value error, ")


def _must(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if kind in _MUST:
        return _MUST[kind].format(**problem.get("ctx", {}))
    found = next((must for start, must in _KINDS.items() if kind.startswith(f"{start}_")), None)
    return found or str(problem["msg"]).removeprefix("Input should ")


def _shown(value: str | float | None) -> str:
    """As it is written in a file."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
