"""What is behind one line of a bill: its price version, its windows and their requests."""

from __future__ import annotations

import streamlit as st

from dashboard.freshness import Freshness, State
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.bills import MAX_WINDOWS, Line, LineWindow, read_line_windows
from dashboard.queries.prices import PriceVersion, read_prices
from dashboard.queries.requests import MAX_ROWS, MINUTE, Request, read_line_requests
from dashboard.table import Value, show_table
from dashboard.views.requests import show_requests
from dashboard.wording import ELSEWHERE, instant, literal, minute, money, price_text, several, spaced
from metering.plan_terms import FEE_WORDS, Fee
from metering.price_models import model_words

SHARED_FOR_SECONDS = 8.0


def line_name(line: Line) -> str:
    """What a line is called in a link: model, meter, and the version of its price."""
    if line.is_fee:
        return f"plan {line.tier} · {FEE_WORDS[Fee(line.kind or '')]} · {line.currency}"
    price = price_text(line.price_version)
    price = f"price {price}" if price.startswith("lsn") else price
    tier = f" · {line.tier}" if line.tier else ""
    model = model_words(line.model or "unknown model")
    return f"{model} · {line.meter} · {price} · {line.currency or 'no currency'}{tier}"


def show_line(line: Line) -> None:
    """Draw the price, the windows, and the requests of the newest or of one chosen window."""
    if line.is_fee:
        st.caption(
            f"Prorated by the {several(line.quantity, 'day')} that the account has the plan in this month, as the "
            "catalog is now. It belongs to no request and has no windows."
        )
        return
    _price(line)
    reading = ask_every(SHARED_FOR_SECONDS, read_line_windows, line)
    windows = head("Windows", reading, lambda found: _windows_freshness(line, found))
    if not windows:
        return
    show_table([_row(window) for window in windows], "line-windows", height=260)
    starts = {minute(window.window_start): window.window_start for window in windows}
    everything = "the whole line"
    opened = st.selectbox("Requests of", [everything, *starts], key="line_window", bind="query-params")
    start, end = line.first_window, line.last_window_end
    if opened in starts:
        start, end = starts[opened], starts[opened] + MINUTE
    requests_reading = ask_every(SHARED_FOR_SECONDS, read_line_requests, line, start, end)
    requests = head("Requests", requests_reading, _requests_freshness)
    if requests:
        show_requests(requests, "line-requests")


def _price(line: Line) -> None:
    now = current_time().replace(second=0, microsecond=0)
    prices = ask_every(SHARED_FOR_SECONDS, read_prices, now)
    head("Price version", prices, lambda known: _price_freshness(line, known))


def _price_freshness(line: Line, prices: tuple[PriceVersion, ...]) -> Freshness:
    if line.price_version is None and line.model is None:
        return Freshness(
            State.IDLE,
            "The request of these completions never came, so they have no model and no price; they are never priced 0.",
        )
    if line.price_version is None:
        return Freshness(
            State.IDLE,
            "No price matched this usage, so it has no amount; it is never priced 0. Once the catalog has a price "
            "for it, the next audit bills it.",
        )
    if line.price_version in ELSEWHERE:
        return Freshness(State.IDLE, ELSEWHERE[line.price_version])
    for price in prices:
        if (price.lsn, price.meter) == (line.price_version, line.meter):
            of = "" if price.model == line.model else f" of {literal(model_words(price.model))}"
            costs = f"{money(price.unit_price, price.currency)} per {spaced(line.unit)}"
            if price.terms is not None:
                total = "the month's total of its pool" if line.pooled else "the month's total"
                costs = f"{price.terms} ({price.currency}, of {total}; {_next(line)})"
            words = (
                f"{costs}{of}, plan {literal(price.plan)}, "
                f"from {instant(price.effective_from)} UTC ({price.state}); change {price.lsn} in the journal."
            )
            return Freshness(State.LIVE, words)
    return Freshness(State.NEVER_HAD_DATA, f"Version {line.price_version} is not in the price table.")


def _next(line: Line) -> str:
    """The estimate that no sum contains: a minute has no amount of its own."""
    return f"the next {spaced(line.unit)} would add {money(line.next_unit_price, line.currency)}"


def _windows_freshness(line: Line, windows: tuple[LineWindow, ...]) -> Freshness:
    if line.whole_period is not None:
        sentence = f"Each {line.whole_period} is billed as a whole, at the price of its start: it has no minutes."
        return Freshness(State.IDLE, sentence)
    if not windows:
        return Freshness(State.NEVER_HAD_DATA, "This line has no windows any more.")
    cut = f"the newest {MAX_WINDOWS:,}" if len(windows) == MAX_WINDOWS else f"{len(windows):,}"
    return Freshness(State.LIVE, f"{cut} minutes, the last at {minute(windows[0].window_start)} UTC.")


def _requests_freshness(requests: tuple[Request, ...]) -> Freshness:
    if not requests:
        return Freshness(State.NEVER_HAD_DATA, "No request of these windows is in the usage table.")
    cut = f"the latest {MAX_ROWS:,}" if len(requests) == MAX_ROWS else f"{len(requests):,}"
    return Freshness(State.LIVE, f"{cut} requests, by when they were received.")


def _row(window: LineWindow) -> dict[str, Value]:
    return {
        "window start (UTC)": minute(window.window_start),
        "quantity": window.quantity,
        "amount": window.amount,
        "late quantity": window.late_quantity,
        "state": "✎ corrected" if window.corrected else "as first billed",
    }
