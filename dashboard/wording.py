"""How numbers, money and instants are written on every page. Money is exact: text, never a float."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal, localcontext

from dashboard.exact import Quantity
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE

UNKNOWN = "unknown"

_MARKUP = re.compile(r"([\\`*\[\]()#<>~$:|!])")


def literal(text: str) -> str:
    """A name from outside as it is, where Markdown is written: its signs make no link, picture or colour."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def escaped(text: str) -> str:
    """A stranger's text with invisible characters escaped: it must not change direction or hide anything."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def spaced(word: str) -> str:
    """A word of a closed set as a column is headed: `input tokens`."""
    return word.replace("_", " ")


ELSEWHERE = {
    BILLED_AS_PART: "A meter within this one bills these units at its own price, so they cost nothing here.",
    BILLED_IN_WHOLE: "These units have no price of their own: the meter that they are within bills them.",
}
"""Of a line whose units another meter bills, why."""


def price_text(price_version: int | None) -> str:
    """What a line is priced by: `lsn 12`, `unpriced`, `in another meter`."""
    if price_version is None:
        return "unpriced"
    return "in another meter" if price_version in ELSEWHERE else f"lsn {price_version}"


def count(number: Quantity | None) -> str:
    """`1,234,567`, `1,234.5`; an unknown number is not 0."""
    if number is None:
        return UNKNOWN
    return f"{number:,}" if isinstance(number, int) else f"{number:,f}"


def money(amount: Decimal | None, currency: str | None = None) -> str:
    """All digits that are not trailing zeros, at least two decimals: `1,234.50 EUR`, `0.000000000012 EUR`."""
    if amount is None:
        return UNKNOWN
    whole, _, decimals = f"{amount:,f}".partition(".")
    text = f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
    return f"{text} {currency}" if currency else text


def rounded(amount: Decimal, currency: str | None = None) -> str:
    """Money to two decimals, below one to two digits: for headlines, marked `≈` where digits were lost."""
    places = 2 if amount == 0 else max(2, 1 - amount.adjusted())
    with localcontext(prec=1_000):
        short = round(amount, places)
    text = f"{'' if short == amount else '≈ '}{short:,.{places}f}"
    return f"{text} {currency}" if currency else text


def moment(instant: datetime) -> str:
    """An instant to the second, without its day: for what happened just now."""
    return f"{instant:%H:%M:%S} UTC"


def instant(value: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "never" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def minute(value: datetime) -> str:
    """An instant to the minute, in UTC."""
    return f"{value:%Y-%m-%d %H:%M}"


def several(number: Quantity, noun: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def span(duration: timedelta) -> str:
    """A duration in the largest fitting unit, such as `45 s`, `3 min` or `2 h`; below zero counts as none."""
    seconds = max(0, round(duration.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def length(duration: timedelta) -> str:
    """A duration with two units, such as `1 h 05 min`, `3 min 20 s` or `12 s`."""
    seconds = max(0, round(duration.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3_600} h {seconds % 3_600 // 60:02d} min"
