"""Live windows: usage per minute, updated while it is watched; a window opens to the lateness of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark
from dashboard.exact import Quantity, total_quantity
from dashboard.filters import choose, choose_account, choose_hours
from dashboard.freshness import Freshness, State, freshness
from dashboard.marks import WINDOWS
from dashboard.meter_columns import with_meters
from dashboard.panel import ask, ask_every, head
from dashboard.queries.requests import MAX_ROWS, MINUTE, Request, read_window_requests
from dashboard.queries.windows import By, UsageWindow, UsageWindows, WindowFilter, read_windows
from dashboard.table import Row, Value, show_table
from dashboard.views.requests import show_requests
from dashboard.wording import count, minute, moment, span
from metering.lateness import WindowState

REFRESH_SECONDS = 2
DETAIL_SECONDS = 5

COLORS = ["#4aa3d8", "#d98200", "#7b8b9a", "#b8548c"]
_NOT_FINAL = (WindowState.OPEN, WindowState.CLOSING)


def show() -> None:
    """Draw the page."""
    st.title("Live windows")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by = By(choose("One row per", "by", {"account": "account", "model": "model"}))
        account = choose_account()
        hours = choose_hours((1, 3, 6), 1)
    chosen = WindowFilter(hours, by, account)
    _live(chosen)
    _opened(chosen)


@st.fragment(run_every=REFRESH_SECONDS)
def _live(chosen: WindowFilter) -> None:
    live = head("Usage per minute", ask(read_windows, chosen), _freshness)
    if live is None or live.newest is None:
        return
    _figures(live)
    if not live.windows:
        st.info("No usage in this time. Choose a longer one, or another account.", icon=":material/search_off:")
        return
    if live.meters.requests:
        chart = _requests_per_minute(live.windows, live.meters.requests)
        st.altair_chart(chart, alt="Requests per minute, by state of the window")
    meters = live.meters.shown(meter for window in live.windows for meter in window.quantities)
    show_table([_row(window, chosen.by, meters) for window in live.windows], "windows")
    if live.is_cut:
        st.caption("Only the newest rows are shown; `weir usage` lists all.")


def _freshness(live: UsageWindows) -> Freshness:
    if live.feed.reported_at is not None and live.newest is not None and live.feed.frontier is not None:
        is_final = live.closed_until is not None and live.newest <= live.closed_until
        found = freshness(live.feed, live.newest, "usage")
        if is_final and found.state is State.LIVE:
            return Freshness(State.IDLE, f"Every window is closed; {found.sentence[:1].lower()}{found.sentence[1:]}")
        return found
    return freshness(live.feed, live.newest, "usage")


def _figures(live: UsageWindows) -> None:
    now_open = [window for window in live.windows if window.state in _NOT_FINAL]
    columns = st.columns(5)
    columns[0].metric("Open or closing", f"{len({window.window_start for window in now_open}):,} min")
    columns[1].metric("Requests in them", count(_sum(now_open, live.meters.requests)))
    columns[2].metric("Tokens in them", count(_sum(now_open, live.meters.tokens)))
    columns[3].metric("Late rows, included", f"{sum(window.late_rows for window in live.windows):,}")
    grace = "unknown" if live.feed.grace is None else span(live.feed.grace)
    folded = "nothing yet" if live.feed.frontier is None else moment(live.feed.frontier)
    own = "".join(f" {meter}: {span(grace)}." for meter, grace in live.feed.meter_graces.items())
    waits = " A window is closed once the grace of every meter is over." if own else ""
    help_ = f"A window is open until the frontier ({folded}) passes its end, then closing for this long.{own}{waits}"
    columns[4].metric("Grace", grace, help=help_)


def _sum(windows: Iterable[UsageWindow], meters: Sequence[str]) -> Quantity:
    return total_quantity(window.quantities.get(meter, 0) for window in windows for meter in meters)


def _requests_per_minute(windows: Sequence[UsageWindow], meters: Sequence[str]) -> alt.LayerChart | alt.FacetChart:
    # A bar's height is a float in the browser anyway, and a whole number may be too large to be handed over.
    bars = [
        {
            "minute": window.window_start.isoformat(),
            "requests": float(_sum([window], meters)),
            "state": WINDOWS[window.state],
        }
        for window in windows
    ]
    x = alt.X(
        "yearmonthdatehoursminutes(minute):O",
        title="Minute (UTC)",
        timeUnit=alt.TimeUnitParams(unit="yearmonthdatehoursminutes", utc=True),
        axis=alt.Axis(format="%H:%M", labelAngle=0, labelOverlap="greedy"),
    )
    base = alt.Chart(alt.InlineData(bars)).encode(x=x)
    columns = base.mark_bar().encode(
        y=alt.Y("sum(requests):Q", title="Requests"),
        color=by_mark("state", WINDOWS, COLORS),
        tooltip=[
            alt.Tooltip("minute:T", title="Minute", format="%Y-%m-%d %H:%M"),
            alt.Tooltip("state:N", title="State"),
            alt.Tooltip("sum(requests):Q", title="Requests", format=","),
        ],
    )
    # The sign stands on the bar: colour alone says nothing to some, and nothing on paper.
    signs = (
        base.transform_calculate(sign="slice(datum.state, 0, 1)")
        .transform_aggregate(total="sum(requests)", sign="min(sign)", groupby=["minute"])
        .mark_text(dy=-7, fontSize=11, color="#8090a0")
        .encode(y="total:Q", text="sign:N")
    )
    return alt.layer(columns, signs).properties(height=230)


def _row(window: UsageWindow, by: By, meters: Sequence[str]) -> dict[str, Value]:
    front: Row = {
        "window start (UTC)": minute(window.window_start),
        "state": WINDOWS[window.state],
        by.value: window.key or "unknown",
    }
    back: Row = {
        "amount": window.amount,
        "currency": window.currency or "none",
        "unpriced quantity": window.unpriced_quantity,
        "priced by the month": window.tiered_quantity,
        "late rows": window.late_rows,
    }
    return with_meters(front, {meter: window.quantities.get(meter, 0) for meter in meters}, back)


@st.fragment(run_every=DETAIL_SECONDS)
def _opened(chosen: WindowFilter) -> None:
    windows = ask(read_windows, chosen).value
    if windows is None or not windows.windows:
        return
    names = list(dict.fromkeys(_name(window) for window in windows.windows))
    opened = st.selectbox(
        "Open a window",
        names,
        index=None,
        placeholder="Choose a window to see its requests and how late each was",
        accept_new_options=True,
        key="window",
        bind="query-params",
    )
    start, key = _parse(opened)
    if start is None:
        return
    account, model = (key, None) if chosen.by is By.ACCOUNT else (chosen.account, key)
    reading = ask_every(DETAIL_SECONDS / 2, read_window_requests, start, account, model)
    requests = head(f"Requests of {opened}", reading, lambda found: _requests_freshness(found, start))
    if requests:
        show_requests(requests, "window-requests")


def _name(window: UsageWindow) -> str:
    return f"{minute(window.window_start)} {window.key or ''}".strip()


def _parse(name: str | None) -> tuple[datetime | None, str | None]:
    """The minute and the key in a window's name; the name may come from a link."""
    try:
        start = datetime.fromisoformat((name or "")[:16]).replace(tzinfo=UTC)
    except ValueError:
        return None, None
    return start, (name or "")[17:] or None


def _requests_freshness(requests: tuple[Request, ...], start: datetime) -> Freshness:
    if not requests:
        return Freshness(State.NEVER_HAD_DATA, "No request of this window is in the usage table.")
    late = sum(request.late_seconds >= 0 for request in requests)
    newest = max(request.received_at for request in requests)
    cut = f"the latest {MAX_ROWS:,}" if len(requests) == MAX_ROWS else f"{len(requests):,}"
    return Freshness(
        State.LIVE,
        f"{cut} requests, {late:,} of them received after {moment(start + MINUTE)}; the last at {moment(newest)}.",
    )
