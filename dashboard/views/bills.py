"""Bills: month to date and forecast per account, and for each line its windows, requests and price version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

import streamlit as st

from dashboard.exact import Quantity, total_quantity
from dashboard.exact import total as exact_total
from dashboard.filters import choose, choose_account
from dashboard.freshness import Freshness, freshness
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.bills import Bills, Line, Period, read_bills
from dashboard.queries.hourly_requests import HOUR, HOURS, MAX_SPARKLINES, HourlyRequests, read_hourly_requests
from dashboard.table import Sparkline, Value, show_table
from dashboard.views.bill_headlines import show_headlines
from dashboard.views.bill_line import line_name, show_line
from dashboard.views.bill_tree import Branch, branches
from dashboard.views.bill_values import choose_dimension, show_values
from dashboard.wording import count, literal, money, price_text, several, spaced
from metering.forecast import Rate, forecast
from metering.plan_terms import Fee
from metering.price_models import model_words

REFRESH_SECONDS = 10
HOURLY_SECONDS = 60.0
MONTHS_BACK = 5


@dataclass(frozen=True)
class Total:
    """One account's month in one currency. `unpriced` counts what no price matched; `amount` is None where none did."""

    period: Period
    currency: str | None
    amount: Decimal | None
    unpriced: Quantity
    requests: Quantity
    tokens: Quantity
    lines: int
    forecast: Decimal | None


def show() -> None:
    """Draw the page."""
    st.title("Bills")
    months = shown_months()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        chosen = choose("Month", "month", {f"{month:%Y-%m}": f"{month:%Y-%m}" for month in months})
        dimension = None if account is None else choose_dimension()
    _bills(date.fromisoformat(f"{chosen}-01"), account, dimension)


def shown_months() -> list[date]:
    """The months to choose from: this one, and then those before it."""
    months = [current_time().date().replace(day=1)]
    for _ in range(MONTHS_BACK):
        months.append((months[-1] - timedelta(days=1)).replace(day=1))
    return months


@st.fragment(run_every=REFRESH_SECONDS)
def _bills(month: date, account: str | None, dimension: str | None) -> None:
    reading = ask_every(REFRESH_SECONDS / 2, read_bills, month)
    bills = head(f"{month:%B %Y}", reading, _freshness)
    if bills is None:
        return
    every = totals_of(bills)
    tree = branches(every, bills.periods, account)
    names = {branch.account for branch in tree}
    totals = [total for total in every if total.period.account in names]
    if not totals:
        st.info("No usage in this month.", icon=":material/search_off:")
        return
    show_headlines(totals)
    is_running = month == shown_months()[0]
    hourly = ask_every(HOURLY_SECONDS, read_hourly_requests, _newest_hour(bills)).value if is_running else None
    rows = [
        _row(branch, bills.periods[branch.account], totals, _last_day(branch, hourly) if is_running else {})
        for branch in tree
    ]
    show_table(rows, f"bills-{month:%Y-%m}")
    if is_running:
        st.caption(_explained(_newest_hour(bills), hourly))
    st.caption(
        "These are sums up to now, not invoices; `weir close` issues invoices. The forecast adds the rate of the last "
        "two weeks for the rest of the month; it needs an hour of usage. `weir forecast` measures its error."
    )
    if account is None:
        st.caption(":material/arrow_upward: Choose an account to see the lines of its bill.")
        return
    if dimension is not None:
        show_values(account, month, dimension)
        return
    lines = [line for line in bills.lines if line.account == account]
    st.markdown(f"#### Lines of {literal(account)}")
    show_table([_line_row(line) for line in lines], "bill-lines")
    _opened(lines)


def _freshness(bills: Bills) -> Freshness:
    return freshness(bills.feed, bills.newest, "usage")


def totals_of(bills: Bills) -> list[Total]:
    """The lines summed per account and currency: two currencies are never added."""
    groups: dict[tuple[str, str | None], list[Line]] = {}
    for line in bills.lines:
        groups.setdefault((line.account, line.currency), []).append(line)
    known_until = bills.feed.frontier or bills.feed.read_at
    return [
        _total(bills.periods[account], currency, lines, bills, known_until)
        for (account, currency), lines in groups.items()
    ]


def _total(period: Period, currency: str | None, lines: Sequence[Line], bills: Bills, known_until: datetime) -> Total:
    meters, rate = bills.meters, bills.rates.get((period.account, currency))
    amounts = [line.amount for line in lines if line.amount is not None]
    amount = exact_total(amounts) if amounts else None
    return Total(
        period=period,
        currency=currency,
        amount=amount,
        unpriced=total_quantity(line.quantity for line in lines if line.price_version is None and not line.is_fee),
        requests=total_quantity(line.quantity for line in lines if line.meter in meters.requests),
        tokens=total_quantity(line.quantity for line in lines if line.meter in meters.tokens),
        lines=len(lines),
        forecast=None if amount is None else _forecast(lines, rate, known_until, period.end),
    )


def _forecast(lines: Sequence[Line], rate: Rate | None, known_until: datetime, end: datetime) -> Decimal | None:
    """The cost so far, and the rate for the rest, which has no month that is billed as a whole and no flat fee.

    None before the end of a month with tiers or packages, included units, a minimum or a maximum: no rate says what
    these will cost.
    """
    if known_until < end and any(line.tier is not None and line.kind != Fee.FLAT for line in lines):
        return None
    so_far = exact_total(line.amount for line in lines if line.amount is not None)
    return forecast(so_far, rate, known_until, end)


def _row(branch: Branch, period: Period, totals: Sequence[Total], last_day: Mapping[str, Value]) -> dict[str, Value]:
    """What an account owes alone and with its descendants. An account without usage is listed for these."""
    key = branch.account, branch.currency
    own = next((total for total in totals if (total.period.account, total.currency) == key), None)
    return {
        "account": f"{'· ' * branch.depth}{branch.account}",
        "name": period.name or "not in the catalog",
        "month to date": None if own is None else own.amount,
        "with accounts below": branch.amount if branch.has_below else None,
        "currency": branch.currency or "none",
        "forecast": None if own is None else own.forecast,
        **last_day,
        "requests": 0 if own is None else own.requests,
        "tokens": 0 if own is None else own.tokens,
        "unpriced quantity": 0 if own is None else own.unpriced,
        "lines": 0 if own is None else own.lines,
        "month ends (UTC)": period.end,
        "time zone": period.timezone,
    }


def _newest_hour(bills: Bills) -> datetime:
    return (bills.feed.frontier or bills.feed.read_at).replace(minute=0, second=0, microsecond=0)


def _last_day(branch: Branch, hourly: HourlyRequests | None) -> dict[str, Value]:
    day = None if hourly is None else hourly.of(branch.account, branch.currency)
    return {
        f"requests, {HOURS} h": None if day is None else day.total,
        f"by hour, {HOURS} h": None if day is None else Sparkline(day.by_hour),
    }


def _explained(newest_hour: datetime, hourly: HourlyRequests | None) -> str:
    cut = hourly is not None and hourly.is_cut
    until = f"{newest_hour + HOUR:%Y-%m-%d %H:%M} UTC"
    return (
        f"By hour: an account's own requests in the {HOURS} hours up to {until}, from 0 to its "
        "own busiest hour; the last hour is not over."
        + f" Only for the {MAX_SPARKLINES:,} accounts with the most requests; `weir usage --window PT1H` lists all."
        * cut
    )


def _line_row(line: Line) -> dict[str, Value]:
    return {
        "model": None if line.is_fee else model_words(line.model or "unknown"),
        "meter": line.meter or line.kind,
        "price version": None if line.is_fee else price_text(line.price_version),
        "tier": f"plan {line.tier}" if line.is_fee else f"{line.tier}, of the pool" if line.pooled else line.tier,
        "quantity": line.quantity,
        "unit": spaced(line.unit),
        "amount": line.amount,
        "currency": line.currency or "none",
        "first window (UTC)": line.first_window,
        "until (UTC)": line.last_window_end,
    }


def _opened(lines: Sequence[Line]) -> None:
    by_name = {line_name(line): line for line in lines}
    opened = st.selectbox(
        "Open a line",
        list(by_name),
        index=None,
        placeholder="Choose a line to see its windows, requests and price version",
        key="line",
        bind="query-params",
    )
    if opened is None:
        return
    line = by_name[opened]
    st.markdown(f"#### {literal(opened)}")
    quantity = several(line.quantity, "day") if line.is_fee else f"{count(line.quantity)} {line.meter}"
    st.markdown(f"{quantity}, {money(line.amount, line.currency)}")
    show_line(line)
