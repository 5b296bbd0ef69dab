"""The usage of one account's month by a dimension, such as its API keys or users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import streamlit as st

from dashboard.filters import choose
from dashboard.freshness import Freshness, State
from dashboard.panel import ask_every, head
from dashboard.queries.bill_values import MAX_VALUES, Value, Values, read_dimensions, read_values
from dashboard.table import Value as Cell
from dashboard.table import show_table
from dashboard.wording import spaced

DIMENSIONS_SECONDS = 30.0
SHARED_FOR_SECONDS = 8.0
METER = "meter"
"""No dimension can be called so."""


def choose_dimension() -> str | None:
    """One of the configured dimensions, or None for the lines of the bill; `?by=` in the URL."""
    names: Sequence[str] = ask_every(DIMENSIONS_SECONDS, read_dimensions).value or ()
    if not names:
        return None
    chosen = choose("By", "by", {METER: METER, **{name: name for name in names}})
    return None if chosen == METER else chosen


def show_values(account: str, month: date, dimension: str) -> None:
    """Draw a row for each value of the dimension."""
    reading = ask_every(SHARED_FOR_SECONDS, read_values, account, month, dimension)
    # A tag is called what it is called.
    found = head(f"By {dimension if '.' in dimension else spaced(dimension)}", reading, _freshness)
    if found is None:
        return
    show_table([_row(value) for value in found.values], "bill-values")
    if found.is_cut:
        st.caption(f"`weir usage --window P1M --group-by {dimension}` lists all.")
    if found.has_included:
        st.caption(
            "The account's plan includes units in this month. They belong to no value, so amounts have all units at "
            "their price: the lines of the bill take off what is included."
        )
    if any(value.is_other for value in found.values):
        st.caption("A day keeps 10,000 combinations of dimensions apart; `other` is the usage of all further ones.")


def _freshness(found: Values) -> Freshness:
    if not found.values:
        return Freshness(State.NEVER_HAD_DATA, "No day of this month has usage.")
    cut = f"the first {MAX_VALUES:,}" if found.is_cut else f"{len(found.values):,}"
    return Freshness(State.LIVE, f"{cut} values, sums of the account's days; the largest amounts first.")


def _row(value: Value) -> dict[str, Cell]:
    return {
        "value": "other" if value.is_other else value.value,
        "kind": "further ones" if value.is_other else "none" if value.value is None else "one value",
        "amount": value.amount,
        "currency": value.currency or "none",
        "requests": value.requests,
        "tokens": value.tokens,
        "unpriced quantity": value.unpriced,
        "priced by the month": value.tiered,
    }
