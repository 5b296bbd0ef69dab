"""The windows that are open now: usage per minute and account, filling while one watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import streamlit as st

from dashboard.freshness import Filling, filling, span
from dashboard.panel import current_time, read, say_how_old
from dashboard.queries import MOST_ROWS, LiveWindow, LiveWindows, read_live_windows

REFRESH_SECONDS = 2


@st.fragment(run_every=REFRESH_SECONDS)
def show() -> None:
    """Draw the open and closing windows; drawn again by itself every few seconds."""
    now = current_time()
    reading = read(read_live_windows, now)
    st.subheader("Windows open now")
    say_how_old(reading, now)
    if reading.value is None:
        return
    live = reading.value
    _explain(live)
    if live.windows:
        st.altair_chart(_requests_per_minute(live.windows))
        st.dataframe(_table(live.windows), hide_index=True)
    if live.is_cut:
        st.caption(f"Only the newest {MOST_ROWS:,} rows are shown; `weir usage` lists all.")


def _explain(live: LiveWindows) -> None:
    match filling(live):
        case Filling.NEVER_HAD_DATA:
            st.info("No usage yet. Windows appear here as soon as billing has folded the first request.")
        case Filling.IDLE:
            last = f"{live.last_window_start:%Y-%m-%d %H:%M} UTC"
            st.info(f"Idle: every window is closed. The last one with usage began at {last}.", icon=":material/pause:")
        case Filling.STALE:
            since = "ever" if live.billing_reported_at is None else span(live.read_at - live.billing_reported_at)
            st.warning(f"Stale: billing has not reported for {since}; windows do not move.", icon=":material/warning:")
        case Filling.LIVE:
            grace = "unknown" if live.grace is None else span(live.grace)
            st.caption(
                f"Billing has folded all that was received before {live.frontier:%H:%M:%S} UTC. "
                f"A window is open until that time passes its end, and closing for the grace of {grace}."
            )


def _requests_per_minute(windows: Sequence[LiveWindow]) -> alt.Chart:
    # The word stands under the bar: colour alone says nothing to some, and nothing on paper.
    minutes: dict[str, dict[str, Any]] = {}
    for window in reversed(windows):
        minute = f"{window.window_start:%H:%M} {window.state}"
        bar = minutes.setdefault(minute, {"minute": minute, "requests": 0, "state": window.state})
        bar["requests"] += window.requests
    states = alt.Scale(domain=["open", "closing"], range=["#2a78d6", "#9a9a94"])
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(list(minutes.values())))
        .mark_bar()
        .encode(
            x=alt.X("minute:O", title="Minute (UTC) and state", sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("requests:Q", title="Requests"),
            color=alt.Color("state:N", scale=states, legend=None),
        )
        .properties(height=220)
    )
    return chart


def _table(windows: Sequence[LiveWindow]) -> list[dict[str, Any]]:
    """Amounts are text: a number would pass through the browser's floats and lose digits."""
    return [
        {
            "window start (UTC)": f"{window.window_start:%Y-%m-%d %H:%M}",
            "state": window.state,
            "account": window.account,
            "requests": window.requests,
            "input tokens": window.input_tokens,
            "output tokens": window.output_tokens,
            "cached tokens": window.cached_tokens,
            "amount": f"{window.amount:f}",
            "currency": window.currency or "none",
            "unpriced quantity": window.unpriced_quantity,
        }
        for window in windows
    ]
