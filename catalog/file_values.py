"""The values of a catalog file: what a name, an instant, a currency or the conditions of a price must be."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from metering.limits import MAX_NAME_BYTES, PLAIN_NAME
from metering.price_attributes import ACCOUNT
from metering.price_models import BEGINS, MAX_CONDITIONS, PricedModel
from metering.tags import checked_tags

_MONTH = re.compile(r"((?:19|20|21)[0-9]{2})-(0[1-9]|1[0-2])")
RFC3339 = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)"


def checked_text(value: Any) -> str:
    """The text, if it can be a name or a title. Raises ValueError that says what it must be."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text that is not empty")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(f"must be at most {MAX_NAME_BYTES} bytes long")
    if not all(character.isprintable() for character in value):
        raise ValueError("must not hold control characters")
    return value


def currency_code(value: str) -> str:
    """The code of a currency. Raises ValueError."""
    if not re.fullmatch(r"[A-Z]{3}", value):
        raise ValueError("must be three capital letters (ISO 4217), such as EUR")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as problem:
        raise ValueError("must be a time zone of the IANA database, such as Europe/Berlin") from problem
    return value


def _instant(value: Any) -> datetime:
    if isinstance(value, str) and re.fullmatch(RFC3339, value, re.ASCII):
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError) as problem:
            raise ValueError(f"must be a day and time that exist: {problem}") from problem
    raise ValueError("must be a date and time with its offset (RFC 3339), such as 2026-01-01T00:00:00Z")


def _perhaps_instant(value: Any) -> datetime | None:
    return None if value in (None, "", "null", "~") else _instant(value)


def perhaps(value: Any) -> Any:
    """The value; None for what YAML and JSON write for none."""
    return None if value in (None, "", "null", "~") else value


def _tags(value: Any) -> dict[str, str]:
    return {} if value in (None, "", "null", "~") else checked_tags(value)


def _parent(value: Any) -> str:
    return "" if value in (None, "", "null", "~") else checked_text(value)


def conditions_in(value: Any) -> dict[str, str]:
    """The conditions of a price: the value of each column. Raises ValueError."""
    if value in (None, "", "null", "~"):
        return {}
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_CONDITIONS:
        raise ValueError(f"must be 1 to {MAX_CONDITIONS} columns of events, and the value of each")
    conditions = {name: condition_in(text) for name, text in value.items()}
    for name, text in conditions.items():
        if not re.fullmatch(PLAIN_NAME, str(name)) and not str(name).startswith(ACCOUNT):
            raise ValueError(f"{name!r} must be the name of a column")
        if checked_text(text) != text.strip() or text in ("null", "~"):
            raise ValueError(f"{name} is {text!r}: must be a value that events have, without spaces around it")
    return conditions


def condition_in(value: Any) -> Any:
    """A value as the catalog has it: YAML writes booleans in three ways, and the file gives them as texts."""
    if isinstance(value, bool) or value in ("True", "TRUE", "False", "FALSE"):
        return str(value).lower()
    return value


def priced_model_in(value: Any, info: ValidationInfo) -> str:
    """What a price is for, as the catalog has it: the model with the conditions beside it. Raises ValueError."""
    model, conditions = checked_text(value), info.data.get("conditions") or {}
    if not conditions:
        return PricedModel.parse(model).text
    if BEGINS in model:
        raise ValueError("must not contain conditions if `conditions` is given")
    return checked_text(PricedModel.of(model, conditions).text)


def several_models_in(price: Any) -> Any:
    """An entry of prices whose `models` are its `model`, as the catalog has it. Raises ValueError."""
    if not isinstance(price, dict) or price.get("models") in (None, "", "null", "~"):
        return price
    if "model" in price:
        raise ValueError("must have model or models, not both")
    models = price["models"]
    if not isinstance(models, list | tuple) or not models:
        raise ValueError("models must be a list of names and prefixes of models")
    names = [checked_text(name) for name in models]
    model = names[0] if len(names) == 1 else PricedModel.group(names).text
    return {**{name: value for name, value in price.items() if name != "models"}, "model": model}


def tiered_kind(value: Any) -> Any:
    """The kind of a price. Raises ValueError for that of a plan's fee."""
    if value == "flat":
        raise ValueError("a flat fee a month is of a plan: write it as the flat_fee of an entry of plan_terms")
    return value


def pool_month(value: Any) -> date | None:
    """The first day of a month such as 2026-10; None where there is none. Raises ValueError."""
    if value in (None, "", "null", "~"):
        return None
    found = _MONTH.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be a month such as 2026-10")
    return date(int(found[1]), int(found[2]), 1)


Text = Annotated[str, BeforeValidator(checked_text)]
Currency = Annotated[Text, AfterValidator(currency_code)]
Zone = Annotated[Text, AfterValidator(_zone)]
Instant = Annotated[datetime, BeforeValidator(_instant)]
PerhapsInstant = Annotated[datetime | None, BeforeValidator(_perhaps_instant)]
Tags = Annotated[dict[str, str] | None, BeforeValidator(_tags)]
Named = Annotated[str, BeforeValidator(_parent)]
"""Empty where the file leaves it out."""
Parent = Annotated[str | None, BeforeValidator(_parent)]
"""Both None where the file leaves them out, and empty where it removes them."""
