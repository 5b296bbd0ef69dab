"""The values of a captured catalog row: each in its form, or refused with a sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import BeforeValidator, Field

from jobs.streams import UNIT_PRICE
from metering.instants import EPOCH
from metering.limits import MAX_NAME_BYTES
from metering.plan_terms import parse_terms, terms_of
from metering.tags import checked_tags, tags_text

MAX_UNIT_PRICE = Decimal(10) ** (UNIT_PRICE.precision - UNIT_PRICE.scale)
LAST_DECIMAL = Decimal(1).scaleb(-UNIT_PRICE.scale)
LARGEST_POSITION = 200_000_000_000_000_000
"""Of a log, and of microseconds since 1970: the end of the calendar comes sooner than that of 64 bits."""


def _instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("an instant is a text like 2026-01-01T00:00:00Z")
    instant = datetime.fromisoformat(value)
    if instant.tzinfo is None:
        raise ValueError("an instant needs its offset from UTC")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the instant is outside the calendar") from error


def _unit_price(value: object) -> Decimal | None:
    if value is None:
        return None
    if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
        raise ValueError("a unit price is a decimal number")
    try:
        price = Decimal(value)
    except InvalidOperation as error:
        raise ValueError("a unit price is a decimal number") from error
    if not price.is_finite() or not 0 <= price < MAX_UNIT_PRICE:
        raise ValueError(f"a unit price is at least 0 and below {MAX_UNIT_PRICE}")
    # The table's own form: Arrow takes no zero with 50 digits before its point, and no price with 45 after it.
    stored = price.copy_abs().quantize(LAST_DECIMAL)
    if stored != price:
        raise ValueError(f"a unit price has at most {UNIT_PRICE.scale} decimals")
    return stored


def checked_text(value: object) -> object:
    """The value. Raises ValueError for a text that no column can hold, or that is longer than a name may be."""
    if not isinstance(value, str):
        return value
    if "\0" in value:
        raise ValueError("no text column of a database can hold U+0000")
    try:
        length_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair is no character") from error
    if length_bytes > MAX_NAME_BYTES:
        raise ValueError(f"a name has at most {MAX_NAME_BYTES} bytes")
    return value


def author_or_none(value: object) -> object:
    """The author; an invalid name is dropped, and never a reason to reject a change."""
    try:
        return checked_text(value) if isinstance(value, str) and value else None
    except ValueError:
        return None


def tags_or_none(value: object) -> str | None:
    """As Debezium writes them, JSON in a text. Anything else that an earlier release accepted counts as absent."""
    try:
        return tags_text(checked_tags(json.loads(value) if isinstance(value, str) else value))
    except (ValueError, RecursionError):
        return None


def terms_or_none(value: object) -> str | None:
    """As Debezium writes them, JSON in a text. One price has one text (`terms.text`)."""
    if value is None:
        return None
    return parse_terms(value).text if isinstance(value, str) else terms_of(value).text


def instant_or_none(value: object) -> datetime | None:
    """The instant; an invalid one counts as absent."""
    try:
        return _instant(value)
    except ValueError:
        return None


Text = Annotated[str, BeforeValidator(checked_text), Field(min_length=1)]
FreeText = Annotated[str, BeforeValidator(checked_text)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
Instant = Annotated[datetime, BeforeValidator(_instant)]
PerhapsUnitPrice = Annotated[Decimal | None, BeforeValidator(_unit_price)]
Milliseconds = Annotated[int, Field(ge=0, le=(datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1))]


def known_position(value: object) -> object:
    """An invalid position counts as absent: earlier versions accepted anything there."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_POSITION
    return value if is_number else None
