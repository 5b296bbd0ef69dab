"""Alerts: firing, pending and resolved, with their history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark, time_axis
from dashboard.filters import choose_hours
from dashboard.freshness import Freshness, State
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.alerts import Alert, Episode, read_history, read_pending
from dashboard.table import Value, show_table
from dashboard.views.firing import show_alerts, show_firing, show_none
from dashboard.wording import several

REFRESH_SECONDS = 3
HISTORY_SECONDS = 10

_MARKS = {"firing": "● firing", "resolved": "✓ resolved"}


def show() -> None:
    """Draw the page."""
    st.title("Alerts")
    left, right = st.columns(2, gap="large")
    with left:
        show_firing()
    with right:
        _pending()
    hours = choose_hours((1, 6, 24, 168), 24)
    _history(hours)


@st.fragment(run_every=REFRESH_SECONDS)
def _pending() -> None:
    alerts = head("Pending alerts", ask_every(REFRESH_SECONDS / 2, read_pending), _pending_freshness)
    if alerts is None:
        return
    if not alerts:
        show_none("Nothing is about to fire.")
    show_alerts(alerts)


def _pending_freshness(alerts: tuple[Alert, ...]) -> Freshness:
    words = (
        "no rule's condition holds"
        if not alerts
        else f"{several(len(alerts), 'alert')} pending, not yet for long enough to fire"
    )
    return Freshness(State.LIVE, f"Prometheus answered just now: {words}.")


@st.fragment(run_every=HISTORY_SECONDS)
def _history(hours: int) -> None:
    now = current_time()
    instant = now.replace(second=now.second // HISTORY_SECONDS * HISTORY_SECONDS, microsecond=0)
    episodes = head("History", ask_every(HISTORY_SECONDS, read_history, instant, hours), _history_freshness)
    if not episodes:
        return
    st.altair_chart(_timeline(episodes, now), alt="When alerts fired")
    show_table([_row(episode, now) for episode in episodes], "alert-history")


def _history_freshness(episodes: tuple[Episode, ...]) -> Freshness:
    if not episodes:
        return Freshness(State.IDLE, "No alert has fired in this time.")
    resolved = sum(episode.end is not None for episode in episodes)
    return Freshness(
        State.LIVE, f"{several(len(episodes), 'episode')}, {resolved:,} resolved; to within half a minute."
    )


def _row(episode: Episode, now: datetime) -> dict[str, Value]:
    return {
        "alert": episode.name,
        "severity": episode.severity,
        "state": _MARKS["firing" if episode.end is None else "resolved"],
        "fired (UTC)": episode.start,
        "resolved (UTC)": episode.end,
        "lasted": (episode.end or now) - episode.start,
        "labels": ", ".join(f"{name}={value}" for name, value in episode.labels),
    }


def _timeline(episodes: Sequence[Episode], now: datetime) -> alt.Chart:
    bars = [
        {
            "alert": episode.name,
            "start": episode.start.isoformat(),
            "end": (episode.end or now).isoformat(),
            "state": _MARKS["firing" if episode.end is None else "resolved"],
        }
        for episode in episodes
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar(height=12, cornerRadius=2)
        .encode(
            x=time_axis("start"),
            x2="end:T",
            y=alt.Y("alert:N", title=None, axis=alt.Axis(labelLimit=260)),
            color=by_mark("state", _MARKS, ["#d0453e", "#7b8b9a"]),
            tooltip=["alert:N", "state:N", "start:T", "end:T"],
        )
        .properties(height=110 + 24 * len({episode.name for episode in episodes}))
    )
    return chart
