"""The four applications: what each is doing, how far behind it is, and how old that is."""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from dashboard.freshness import Health, health, span
from dashboard.panel import current_time, read, say_how_old
from dashboard.queries import Application, read_applications
from monitoring.metrics import JOBS

REFRESH_SECONDS = 2

# An icon and a word say the same as the colour does.
_BADGES = {
    Health.NEVER_RAN: (":material/radio_button_unchecked:", "gray"),
    Health.STARTING: (":material/hourglass_top:", "blue"),
    Health.CATCHING_UP: (":material/fast_forward:", "blue"),
    Health.RUNNING: (":material/play_arrow:", "green"),
    Health.IDLE: (":material/pause:", "gray"),
    Health.STALE: (":material/warning:", "orange"),
    Health.STOPPED: (":material/stop:", "red"),
}


@st.fragment(run_every=REFRESH_SECONDS)
def show() -> None:
    """Draw one card per application; drawn again by itself every few seconds."""
    now = current_time()
    reading = read(read_applications, now)
    st.subheader("Applications")
    say_how_old(reading, now)
    if reading.value is None:
        return
    for column, job in zip(st.columns(len(JOBS)), JOBS, strict=True):
        with column, st.container(border=True):
            _card(job, reading.value.by_job.get(job), reading.value.read_at)


def _card(job: str, application: Application | None, now: datetime) -> None:
    doing = health(application, now)
    icon, color = _BADGES[doing]
    st.markdown(f"**{job}** &nbsp; :{color}-badge[{icon} {doing}]")
    if application is None:
        st.caption("This application has not run on this database yet.")
        return
    records, seconds = st.columns(2)
    records.metric("Records behind", _count(application.records_behind))
    seconds.metric(
        "Seconds behind", "unknown" if application.seconds_behind is None else f"{application.seconds_behind:,.1f}"
    )
    st.markdown(_last_batch(application, now))
    st.markdown(f"Restarts: {application.starts - 1:,}")
    if application.frontier is not None:
        st.markdown(f"Frontier: {application.frontier:%Y-%m-%d %H:%M:%S} UTC")
    reported = span(now - application.reported_at)
    if doing is Health.STALE:
        st.warning(f"No report for {reported}: these are its last values.", icon=":material/warning:")
    else:
        st.caption(f"Reported {reported} ago")


def _last_batch(application: Application, now: datetime) -> str:
    if application.last_batch_at is None:
        return "Last batch: none since it started"
    records, took_ms = _count(application.last_batch_records), _count(application.last_batch_ms)
    return f"Last batch: {records} records in {took_ms} ms, {span(now - application.last_batch_at)} ago"


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
