"""Joins: outcomes of requests, how many wait for their completion, and the price versions in force."""

from __future__ import annotations

from datetime import datetime

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark
from dashboard.filters import choose, choose_account, choose_hours
from dashboard.freshness import Freshness, State, freshness
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.contracts import Contract, Contracts, read_contracts
from dashboard.queries.outcomes import Outcomes, read_outcomes
from dashboard.queries.prices import PriceVersion, read_prices
from dashboard.table import Value, show_table
from dashboard.wording import count, instant
from metering.price_models import model_words
from metering.vocabulary import Outcome

REFRESH_SECONDS = 3
PRICES_SECONDS = 15

_MARKS: dict[str, str] = {
    Outcome.MATCHED: "✓ matched",
    Outcome.ABANDONED: "◌ abandoned",
    Outcome.ORPHANED: "? orphaned",
    Outcome.SUPERSEDED: "≡ superseded",
}
_MEANINGS: dict[str, str] = {
    Outcome.MATCHED: "Request and completion met within the timeout.",
    Outcome.ABANDONED: "A request without a completion: the request is counted and billed, but no tokens.",
    Outcome.ORPHANED: "A completion without its request: it has no model, so it is shown and not billed.",
    Outcome.SUPERSEDED: "Another report of a request that was already decided: its quantity is 0.",
}
COLORS = ["#12906b", "#d98200", "#b8548c", "#5a6b7b"]
_PRICE_MARKS = {
    "in force": "✓ in force",
    "next": "◔ next",
    "later": "◌ later",
    "past": "● past",
    "ended": "■ ended",
    "withdrawn": "✕ withdrawn",
}


def show() -> None:
    """Draw the page."""
    st.title("Joins")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        hours = choose_hours((1, 6, 24), 1)
    _outcomes(hours, account)
    _prices()
    _contracts(account)


@st.fragment(run_every=REFRESH_SECONDS)
def _outcomes(hours: int, account: str | None) -> None:
    found = head("What became of requests", ask_every(REFRESH_SECONDS / 2, read_outcomes, hours, account), _freshness)
    if found is None or found.newest is None:
        return
    figures = st.columns(len(Outcome) + 1)
    for column, outcome in zip(figures, Outcome, strict=False):
        column.metric(_MARKS[outcome], count(found.total(outcome)), help=_MEANINGS[outcome])
    waiting = "not shown" if found.waiting is None else count(found.waiting)
    figures[-1].metric(
        "◔ waiting now", waiting, help="Requests and completions that wait for each other; all accounts."
    )
    if found.by_minute:
        st.altair_chart(_per_minute(found), alt="Outcomes per minute")


def _freshness(found: Outcomes) -> Freshness:
    fresh = freshness(found.feed, found.newest, "outcomes")
    if fresh.state is State.LIVE and found.files_read < found.files:
        share = found.files_read / found.files
        return Freshness(State.LIVE, f"Still reading: {share:.0%} of the usage table's files so far, the newest first.")
    return fresh


def _per_minute(found: Outcomes) -> alt.Chart:
    bars = [
        {"minute": minute.isoformat(), "outcome": _MARKS[outcome], "usage_rows": count}
        for minute, outcome, count in found.by_minute
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar()
        .encode(
            x=alt.X(
                "utcyearmonthdatehoursminutes(minute):T",
                title="Minute in which the outcome was known (UTC)",
                axis=alt.Axis(format="%H:%M"),
            ),
            y=alt.Y("sum(usage_rows):Q", title="Usage rows"),
            color=by_mark("outcome", _MARKS, COLORS),
            tooltip=[
                alt.Tooltip("minute:T", title="Minute", format="%Y-%m-%d %H:%M"),
                alt.Tooltip("outcome:N", title="Outcome"),
                alt.Tooltip("sum(usage_rows):Q", title="Usage rows", format=","),
            ],
        )
        .properties(height=240)
    )
    return chart


@st.fragment(run_every=PRICES_SECONDS)
def _prices() -> None:
    now = current_time().replace(second=0, microsecond=0)
    prices = head(
        "Price versions", ask_every(PRICES_SECONDS / 2, read_prices, now), lambda found: _prices_freshness(found, now)
    )
    if not prices:
        return
    which = choose("Show", "prices", {"now": "in force and coming", "all": "every version"})
    shown = [price for price in prices if which == "all" or price.state in ("in force", "next", "later")]
    show_table([_row(price) for price in shown], "prices")


def _prices_freshness(prices: tuple[PriceVersion, ...], now: datetime) -> Freshness:
    if not prices:
        return Freshness(State.NEVER_HAD_DATA, "No price yet: add one with `weir catalog apply`.")
    in_force = sum(price.state == "in force" for price in prices)
    coming = sum(price.effective_from > now and price.state != "withdrawn" for price in prices)
    return Freshness(State.LIVE, f"{in_force:,} in force at {now:%H:%M} UTC, {coming:,} to come.")


@st.fragment(run_every=PRICES_SECONDS)
def _contracts(account: str | None) -> None:
    found = head("What accounts pay now", ask_every(PRICES_SECONDS / 2, read_contracts, account), _contracts_freshness)
    if found is not None and found.rows:
        show_table([_contract_row(contract) for contract in found.rows], "contracts")


def _contracts_freshness(found: Contracts) -> Freshness:
    if not found.rows:
        return Freshness(State.NEVER_HAD_DATA, "No account has a price now: add prices with `weir catalog apply`.")
    ends = (
        ""
        if found.right_until is None
        else f"; the next price or account begins or ends at {instant(found.right_until)}"
    )
    cut = f" The first {len(found.rows):,}: choose an account." if found.is_cut else ""
    read = "" if found.is_stored else " Read from the view: the table does not have the last changes yet."
    return Freshness(State.LIVE, f"As the catalog in Postgres says at this moment{ends}.{read}{cut}")


def _contract_row(contract: Contract) -> dict[str, Value]:
    return {
        "account": contract.account,
        "plan": contract.plan,
        "model": model_words(contract.model),
        "meter": contract.meter,
        "unit price": contract.terms or contract.unit_price,
        "currency": contract.currency,
        "effective from (UTC)": contract.effective_from,
        "in force until (UTC)": contract.in_force_until,
    }


def _row(price: PriceVersion) -> dict[str, Value]:
    return {
        "plan": price.plan,
        "model": model_words(price.model),
        "meter": price.meter,
        "unit price": price.terms or price.unit_price,
        "currency": price.currency,
        "state": _PRICE_MARKS[price.state],
        "effective from (UTC)": price.effective_from,
        "version (lsn)": price.lsn,
    }
