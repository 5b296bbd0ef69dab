"""The figures above the bills: by currency the month to date and its forecast, the largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import streamlit as st

from dashboard.exact import Quantity, total_quantity
from dashboard.exact import total as exact_total
from dashboard.views.bill_tree import Billed
from dashboard.wording import count, rounded, several

MAX_HEADLINES = 4


class Forecast(Billed, Protocol):
    """One account's month in one currency, and what it may come to."""

    @property
    def unpriced(self) -> Quantity:
        """What no price matched."""

    @property
    def forecast(self) -> Decimal | None:
        """None: no rate says what the month will cost."""


@dataclass(frozen=True)
class Headline:
    """A figure with its label; `note` is below it, and may be empty."""

    label: str
    value: str
    note: str


def show_headlines(totals: Sequence[Forecast]) -> None:
    """Draw them in one row."""
    figures = headlines(totals)
    for column, figure in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(figure.label, figure.value, delta=figure.note or None, delta_color="off", delta_arrow="off")


def headlines(totals: Sequence[Forecast]) -> list[Headline]:
    """How many accounts, the money of at most `MAX_HEADLINES` currencies, and what has no price."""
    by_currency: dict[str, list[Forecast]] = {}
    for total in totals:
        if total.currency is not None and total.amount is not None:
            by_currency.setdefault(total.currency, []).append(total)
    sums = {
        currency: exact_total(part.amount for part in parts if part.amount is not None)
        for currency, parts in by_currency.items()
    }
    unpriced = total_quantity(total.unpriced for total in totals)
    return [
        Headline("Accounts", count(len({total.period.account for total in totals})), ""),
        *(
            Headline(f"{currency}, month to date", rounded(sums[currency]), _forecast(by_currency[currency]))
            for currency in sorted(sums, key=lambda currency: -sums[currency])[:MAX_HEADLINES]
        ),
        Headline("Unpriced quantity", count(unpriced), "never priced 0" if unpriced else ""),
    ]


def _forecast(parts: Sequence[Forecast]) -> str:
    """The sum of those that there are; it says so if some accounts have none, and never counts these as if they had."""
    known = [part.forecast for part in parts if part.forecast is not None]
    if not known:
        return "no forecast yet"
    missing = len(parts) - len(known)
    without = f", without {several(missing, 'account')}" if missing else ""
    return f"forecast {rounded(exact_total(known))}{without}"
