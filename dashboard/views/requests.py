"""Requests as a list and by lateness: behind a window, and behind a bill's line."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import streamlit as st

from dashboard.meter_columns import with_meters
from dashboard.queries.meters import in_order
from dashboard.queries.requests import Request
from dashboard.table import Row, Value, show_table
from dashboard.views.event import event_link
from dashboard.wording import instant

_SHOWN_ID = 40


def show_requests(requests: Sequence[Request], key: str) -> None:
    """Draw both. Lateness counts from the end of the request's minute; below zero is on time."""
    left, right = st.columns([2, 5])
    with left:
        st.altair_chart(_lateness(requests), alt="Requests by lateness in seconds")
    with right:
        meters = in_order(meter for request in requests for meter in request.quantities)
        show_table([_row(request, meters) for request in requests], key, height=290)


def _lateness(requests: Sequence[Request]) -> alt.LayerChart | alt.FacetChart:
    rows = [{"late": request.late_seconds} for request in requests]
    bars = (
        alt.Chart(alt.InlineData(rows))
        .mark_bar()
        .encode(
            x=alt.X("late:Q", bin=alt.Bin(maxbins=24), title="Received, seconds after the window's end"),
            y=alt.Y("count():Q", title="Requests", axis=alt.Axis(tickMinStep=1, format=",d")),
        )
    )
    end = alt.Chart(alt.InlineData([{"at": 0}])).mark_rule(strokeDash=[4, 3], color="#d98200").encode(x="at:Q")
    return alt.layer(bars, end).properties(height=260)


def _row(request: Request, meters: Sequence[str]) -> dict[str, Value]:
    front: Row = {
        "request": request.request_id[:_SHOWN_ID],
        "became": event_link(request.request_id, request.received_at),
        "account": request.account,
        "model": request.model or "unknown",
        "user": request.user_id or "",
        "outcome": request.outcome,
        "status": request.status or "",
        "event time (UTC)": instant(request.event_time),
        "late (s)": round(request.late_seconds, 1),
    }
    back: Row = {
        "amount": request.amount,
        "currency": request.currency or "none",
        "usage lsn": request.lsn,
    }
    return with_meters(front, {meter: request.quantities.get(meter) for meter in meters}, back)
