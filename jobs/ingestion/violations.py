"""The text of a violation: where a rule is broken, what is allowed, and the value that was found.

It must tell the sender of the event what to change, without further context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import polars as pl

from jobs.ingestion.strict_json import NUMBER
from metering.contracts.model import Kind
from metering.meters import LARGEST_QUANTITY, QUANTITY_DECIMALS
from metering.vocabulary import Reason

MAX_SHOWN_CHARACTERS = 60
MAX_WHOLE_DIGITS = 18
"""A number with more is not written out as a whole one: its exponent may have any size."""
BOOLEANS = ("true", "false")
_TYPES = {'"': "the string ", "[": "the array ", "{": "the object "}
"""By the first character of a JSON text; of another one the type is plain to see."""


@dataclass(frozen=True)
class Rule:
    """A condition that is true of a bad event, never null; the reason it gives, and the text of the violation."""

    is_broken: pl.Expr
    reason: Reason
    place: str
    """`<standard or contract> <pointer>`."""
    allowed: str
    """The text for a value of the right type, and for any other where `at` is None."""
    at: str | None = None
    """The pointer of the value that the violation shows."""
    value: pl.Expr | None = None
    """That value, where it is of the right type (of a struct its member that is not null); None: the rule is about its
    type only."""
    kind: Kind | None = None
    """The value found there, if it can be shown."""
    wrong_type: str = "type is string"
    missing: str = "required"


def violations(events: pl.DataFrame, rules: Sequence[Rule], broken: pl.Series) -> pl.Series:
    """For each event the text of the rule whose number `broken` has; null where it has none.

    `events` have the column `misread`, and those that the rules' values are made of.
    """
    texts: list[str | None] = [None] * len(broken)
    for number in broken.drop_nulls().unique().to_list():
        rule, rows = rules[number], (broken == number).arg_true()
        of_rule = events[rows]
        values = [None] * len(rows) if rule.value is None else of_rule.select(rule.value).to_series().to_list()
        for row, value, misread in zip(rows.to_list(), values, of_rule["misread"].to_list(), strict=True):
            texts[row] = f"{rule.place}: {_problem(rule, value, misread)}"
    return pl.Series(texts, dtype=pl.String)


def misread_text(found: dict[str, str]) -> str | None:
    """The column `misread`: pointers, each with the JSON of a value that is not of its field's type; null of none.

    A text that some contract accepts as a number is there too, beside its number: another contract may not accept it.
    """
    return "".join(f"\0{at}\0{value}\0" for at, value in found.items()) or None


def is_misread(at: str) -> pl.Expr:
    """Whether the value at a pointer had another type. (No JSON text is a pointer.)"""
    return pl.col("misread").str.contains(f"\0{at}\0", literal=True).fill_null(value=False)


def json_of(value: Any) -> str:
    """A value as JSON, in printable characters, cut after MAX_SHOWN_CHARACTERS; what is nested in it is `…`."""
    if isinstance(value, list) and value.__class__ is not list:
        # strict_json reads an object as the list of its members.
        text = "{" + ", ".join(f"{_scalar(name)}: {_scalar(member)}" for name, member in value[:MAX_SHOWN_CHARACTERS])
        text += "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(_scalar, value[:MAX_SHOWN_CHARACTERS])) + "]"
    else:
        text = _scalar(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return "…"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if value.__class__ is not str:
        # A number, as it was written or as its column holds it.
        return f"{value:f}" if isinstance(value, Decimal) else str(value)[: MAX_SHOWN_CHARACTERS + 1]
    text = json.dumps(value[: MAX_SHOWN_CHARACTERS + 1], ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def _problem(rule: Rule, value: Any, misread: str | None) -> str:
    if rule.at is None:
        return rule.allowed
    _, is_found, rest = (misread or "").partition(f"\0{rule.at}\0")
    if is_found and value is None:
        found = rest.partition("\0")[0]
        return f"{rule.wrong_type}; it is {_TYPES.get(found[0], '')}{found}{_instead(found, rule.kind)}"
    if isinstance(value, dict):
        value = next((member for member in value.values() if member is not None), None)
    return rule.missing if value is None else f"{rule.allowed}; it is {json_of(value)}"


def _instead(found: str, kind: Kind | None) -> str:
    """`, to be written as 812` where it is plain what was meant, and nothing of it was cut off.

    Of a number that only has too many decimals, what its sender can do: a cost of a provider has more as a rule.
    """
    if found.endswith("…"):
        return ""
    content = found[1:-1] if found.startswith('"') else found
    is_number = NUMBER.fullmatch(content) is not None
    is_text = content != found
    meant: str | None = None
    if kind is Kind.INTEGER and is_number:
        meant = _whole(content)
    elif kind is Kind.TEXT and is_number and not is_text:
        meant = f'"{found}"'
    elif is_text and (
        (kind is Kind.DOUBLE and is_number)
        or (kind is Kind.DECIMAL and is_number and _fits(content))
        or (kind is Kind.BOOLEAN and content in BOOLEANS)
    ):
        meant = content
    if kind is Kind.DECIMAL and is_number and _is_finer(content):
        return ", with more decimals: round it, or send a smaller unit, such as millionths"
    return "" if meant in (None, found) else f", to be written as {meant}"


def _fits(text: str) -> bool:
    """Whether a quantity can have this number, to the last digit."""
    number = _quantity(text)
    return number is not None and number == round(number, QUANTITY_DECIMALS)


def _is_finer(text: str) -> bool:
    """Whether a quantity cannot have this number because of its decimals alone."""
    number = _quantity(text)
    return number is not None and number != round(number, QUANTITY_DECIMALS)


def _quantity(text: str) -> Decimal | None:
    """A number that is not too large for a quantity."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        # An exponent of more than eighteen digits.
        return None
    return number if abs(number) <= LARGEST_QUANTITY else None


def _whole(content: str) -> str | None:
    try:
        number = Decimal(content)
    except InvalidOperation:
        # An exponent of more than eighteen digits.
        return None
    if not -MAX_SHOWN_CHARACTERS < number.adjusted() < MAX_WHOLE_DIGITS or number != int(number):
        return None
    return str(int(number))
