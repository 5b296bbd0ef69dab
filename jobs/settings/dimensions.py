"""The setting `dimensions`: what usage can be grouped by besides account, model and meter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from jobs.settings.outcome_columns import OF_OUTCOMES
from metering.limits import MAX_TAG_NAME_BYTES, PLAIN_NAME
from metering.price_attributes import ACCOUNT

MAX_DIMENSIONS = 4
OF_A_LIST = frozenset(
    (
        *("price_version", "unit_price", "quantity", "amount", "unpriced_quantity", "corrected", "state"),
        *("window_start", "window_end", "is_other", "meter"),
    )
)
"""What a list of usage has as a column of its own."""
RESERVED = OF_OUTCOMES - {"user_id"} | OF_A_LIST | {"content_hash"}
"""What an outcome or a list of usage says already, or what every event has another of."""
TAG = "tags."
ACCOUNT_COLUMNS = ("name", "parent", "plan", "timezone")
"""What a dimension can name of an account, as `account.plan`; and each tag of it, as `account.tags.team`."""
TAG_NAME = rf"[A-Za-z0-9_][A-Za-z0-9_.:/@-]{{0,{MAX_TAG_NAME_BYTES - 1}}}"
"""Of a tag that a dimension names: what a list, a URL and a shell take as it is. Others are tags all the same."""
_OF_ACCOUNT = rf"account\.({'|'.join(ACCOUNT_COLUMNS)}|tags\.{TAG_NAME})"


def _named(name: Any) -> Any:
    if isinstance(name, str) and name.startswith(ACCOUNT) and not re.fullmatch(_OF_ACCOUNT, name):
        columns = ", ".join(ACCOUNT + column for column in ACCOUNT_COLUMNS)
        raise ValueError(
            f"{name} is not a column of an account by which usage can be grouped or priced; use {columns}, or "
            f"{ACCOUNT}{TAG}KEY for a tag whose key has letters, digits and _ . : / @ -, begins with a letter, a digit "
            f"or _, and has at most {MAX_TAG_NAME_BYTES} characters"
        )
    return name


NAME = rf"{PLAIN_NAME}|{_OF_ACCOUNT}"
Dimension = Annotated[str, Field(pattern=f"^({NAME})$"), BeforeValidator(_named)]
Dimensions = Annotated[tuple[Dimension, ...], Field(max_length=MAX_DIMENSIONS)]


def refuse_unfit_dimensions(names: Sequence[str]) -> None:
    """Raises ValueError where a dimension is invalid or listed twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} occurs twice")
        if name in RESERVED:
            raise ValueError(f"{name} cannot be a dimension: usage has it already, or it differs in every event")


def of_accounts(names: Iterable[str]) -> tuple[str, ...]:
    """Those that the account has and not the event."""
    return tuple(name for name in names if name.startswith(ACCOUNT))


def of_events(names: Iterable[str]) -> tuple[str, ...]:
    """The others."""
    return tuple(name for name in names if not name.startswith(ACCOUNT))
