"""Sessions: who is active now and for how long, with their tokens; and the history of one user."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark, time_axis
from dashboard.filters import choose_account
from dashboard.freshness import Freshness, State, freshness
from dashboard.meter_columns import with_meters
from dashboard.panel import ask, ask_every, head
from dashboard.queries.session_tokens import NOTHING, SessionTokens, read_session_tokens
from dashboard.queries.sessions import BOUNDS_MINUTES, MAX_ROWS, Session, Sessions, read_history, read_open_sessions
from dashboard.table import Row, Value, show_table
from dashboard.wording import length, literal, several
from metering.sessions import SessionState

REFRESH_SECONDS = 3
TOKENS_SECONDS = 6.0

_MARKS: dict[str, str] = {
    SessionState.OPEN: "○ open",
    SessionState.CLOSED: "● closed",
    SessionState.RETRACTED: "✕ retracted",
}
COLORS = ["#4aa3d8", "#7b8b9a", "#b8548c"]


def show() -> None:
    """Draw the page."""
    st.title("Sessions")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        user = st.text_input("History of user", placeholder="a user id", key="user", width=260, bind="query-params")
    _open_sessions(account)
    if user:
        _history(account, user)


@st.fragment(run_every=REFRESH_SECONDS)
def _open_sessions(account: str | None) -> None:
    found = head(
        "Open now",
        ask(read_open_sessions, account),
        lambda sessions: freshness(sessions.feed, sessions.newest, "sessions"),
    )
    if found is None or found.newest is None:
        return
    _figures(found)
    if not found.sessions:
        st.info("No session is open now.", icon=":material/pause:")
        return
    left, right = st.columns([2, 5])
    with left:
        st.altair_chart(_lengths(found), alt="Open sessions by length")
    with right:
        tokens = ask_every(TOKENS_SECONDS, read_session_tokens, found.sessions).value or NOTHING
        show_table([_row(session, tokens) for session in found.sessions], "open-sessions", height=330)
        if found.open_now > MAX_ROWS:
            st.caption(f"The {MAX_ROWS:,} most recently active of {found.open_now:,}; `weir sessions` lists all.")


def _figures(found: Sessions) -> None:
    gap = found.feed.session_gap
    figures = {
        "Open now": f"{found.open_now:,}",
        "Users active": f"{found.users_now:,}",
        "Events in them": f"{found.events:,}",
        "Median length": "none" if found.median_length is None else length(found.median_length),
        "Longest": "none" if found.longest is None else length(found.longest),
        "Session gap": "unknown" if gap is None else length(gap),
    }
    for column, (label, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(label, value)


def _lengths(found: Sessions) -> alt.Chart:
    bounds = [*(f"{low} min" for low in BOUNDS_MINUTES), ""]
    bars = [
        {"length": f"{low} to {bounds[number + 1]}" if bounds[number + 1] else f"{low} min and more", "sessions": count}
        for number, (low, count) in enumerate(found.lengths)
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar()
        .encode(
            y=alt.Y("length:O", sort=None, title="Length so far"),
            x=alt.X("sessions:Q", title="Open sessions", axis=alt.Axis(tickMinStep=1, format=",d")),
            tooltip=[alt.Tooltip("length:O", title="Length"), alt.Tooltip("sessions:Q", title="Sessions", format=",")],
        )
        .properties(height=330)
    )
    return chart


def _row(session: Session, tokens: SessionTokens) -> dict[str, Value]:
    used = tokens.by_session.get(session.session_id)
    front: Row = {
        "account": session.account,
        "user": session.user_id,
        "state": _MARKS[session.state],
        "start (UTC)": session.session_start,
        "last event (UTC)": session.session_end,
        "length": session.length,
        "events": session.events,
    }
    return with_meters(
        front,
        {meter: used.get(meter, 0) if used else None for meter in tokens.meters},
        {"version": session.version},
    )


@st.fragment(run_every=REFRESH_SECONDS)
def _history(account: str | None, user: str) -> None:
    if account is None:
        st.info(
            f"Choose the account of {literal(user)}: the same user id may exist in several.",
            icon=":material/arrow_upward:",
        )
        return
    retracted = st.toggle(
        "Also sessions that a late event has replaced", key="retracted", bind="query-params", value=False
    )
    reading = ask(read_history, account, user, retracted=retracted)
    sessions = head(f"History of {user}", reading, lambda found: _freshness(found, account))
    if sessions:
        st.altair_chart(_timeline(sessions), alt="Sessions of the user on a time line")
        tokens = ask_every(TOKENS_SECONDS, read_session_tokens, sessions).value or NOTHING
        show_table([_row(session, tokens) for session in sessions], "user-sessions")


def _freshness(sessions: tuple[Session, ...], account: str) -> Freshness:
    if not sessions:
        return Freshness(State.NEVER_HAD_DATA, f"This user of {literal(account)} has no session.")
    now_open = sum(session.state == SessionState.OPEN for session in sessions)
    words = (
        f"{several(len(sessions), 'session')}, {now_open:,} of them open. Tokens are shown for the last two days only."
    )
    return Freshness(State.LIVE if now_open else State.IDLE, words)


def _timeline(sessions: Sequence[Session]) -> alt.Chart:
    bars = [
        {
            "start": session.session_start.isoformat(),
            "end": session.session_end.isoformat(),
            "state": _MARKS[session.state],
            "events": session.events,
        }
        for session in sessions
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar(height=16, cornerRadius=2, stroke="#8090a0", strokeWidth=1)
        .encode(
            x=time_axis("start"),
            x2="end:T",
            y=alt.Y("state:N", title=None),
            color=by_mark("state", _MARKS, COLORS, has_legend=False),
            tooltip=["start:T", "end:T", "state:N", alt.Tooltip("events:Q", format=",")],
        )
        .properties(height=130)
    )
    return chart
