"""The values of the limits of a catalog file: periods, quantities, amounts and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from catalog.file_values import checked_text, currency_code
from jobs.settings.dimensions import NAME, refuse_unfit_dimensions
from metering.limits import CALENDAR_PERIODS, MAX_ROLLING_HOURS, MIN_ROLLING_HOURS, rolling_hours
from metering.price_models import ANY, is_own


def perhaps_currency(value: Any) -> str:
    """The code of a currency; empty where there is none. Raises ValueError."""
    return "" if value in (None, "", "null", "~") else currency_code(checked_text(value))


def perhaps_model(value: Any) -> str:
    """The exact name of a model; empty where there is none. Raises ValueError."""
    if value in (None, "", "null", "~"):
        return ""
    name = checked_text(value)
    if not is_own(name) or name.endswith(ANY):
        raise ValueError("must be the exact name of one model, as usage has it, without prefix, group or conditions")
    return name


def perhaps_dimension(value: Any) -> tuple[str, str] | None:
    """The name of a dimension and its one value; None where there is none. Raises ValueError."""
    if value in (None, "", "null", "~"):
        return None
    # A value that was left out would be no team, or all usage of the account.
    if not isinstance(value, Mapping) or len(value) != 1 or any(text in (None, "null", "~") for text in value.values()):
        raise ValueError("must be one dimension with one value, such as {team: search}")
    ((name, text),) = value.items()
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError("must name a dimension, such as team or account.tags.team")
    refuse_unfit_dimensions([name])
    try:
        return name, checked_text(text)
    except ValueError as problem:
        raise ValueError(f"{name} {problem}") from problem


def limit_period(value: str) -> str:
    """A day or a month (CALENDAR_PERIODS), or hours that roll (`rolling_hours`). Raises ValueError."""
    if value not in CALENDAR_PERIODS and rolling_hours(value) is None:
        raise ValueError(
            f"must be one of {', '.join(CALENDAR_PERIODS)}, of the account's calendar, or the last whole hours, "
            f"PT{MIN_ROLLING_HOURS}H to PT{MAX_ROLLING_HOURS}H"
        )
    return value


def limit_quantity(value: Any) -> str | None:
    """The text of a quantity; None for no limit. Raises ValueError."""
    if value in (None, "null", "~"):
        return None
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,18}(\.\d{1,6})?", value, re.ASCII):
        raise ValueError("must be a quantity such as 1000000, or null for no limit")
    return value


def limit_amount(value: Any) -> str | None:
    """The text of an amount; None for no limit. Raises ValueError."""
    if value in (None, "null", "~"):
        return None
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,18}(\.\d{1,12})?", value, re.ASCII):
        raise ValueError("must be an amount such as 100.00, or null for no limit")
    return value


def limit_step(value: Any) -> str:
    """The text of a step: a number above 0, or a share of the limit such as 80%. Raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,18}(\.\d{1,12})?%?", value, re.ASCII):
        raise ValueError("must be a number such as 800000, or a share of the limit such as 80%")
    if not Decimal(value.rstrip("%")):
        raise ValueError("must be above 0")
    return value


def limit_every(value: Any) -> str | None:
    """The text of what a limit recurs by: as a step; None where it does not. Raises ValueError."""
    return None if value in (None, "", "null", "~") else limit_step(value)
