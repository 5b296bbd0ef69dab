"""Overview: the state and lag of each application, firing alerts, and whether every record is accounted for."""

from __future__ import annotations

from datetime import datetime, timedelta

import altair as alt
import streamlit as st

from dashboard.freshness import Freshness, Health, State, health
from dashboard.panel import ask, ask_every, current_time, head
from dashboard.queries.applications import Application, Applications, read_applications
from dashboard.queries.cluster import SparkApplication, read_spark_applications
from dashboard.queries.lag import read_lag
from dashboard.views.conservation import show_conservation
from dashboard.views.firing import show_firing
from dashboard.views.topic_facts import topic_facts
from dashboard.wording import count, instant, literal, span
from metering.vocabulary import ALWAYS, Job

REFRESH_SECONDS = 2
LAG_SECONDS = 15.0

# An icon and a word say the same as the colour does.
_BADGES = {
    Health.NEVER_RAN: (":material/radio_button_unchecked:", "gray"),
    Health.STARTING: (":material/hourglass_top:", "blue"),
    Health.CATCHING_UP: (":material/fast_forward:", "blue"),
    Health.WAITING: (":material/pending:", "orange"),
    Health.RUNNING: (":material/play_arrow:", "green"),
    Health.IDLE: (":material/pause:", "gray"),
    Health.STALE: (":material/warning:", "orange"),
    Health.STOPPED: (":material/stop:", "red"),
}


def show() -> None:
    """Draw the page."""
    st.title("Overview")
    _applications()
    left, right = st.columns([3, 2], gap="large")
    with left:
        show_conservation()
    with right:
        show_firing()


@st.fragment(run_every=REFRESH_SECONDS)
def _applications() -> None:
    applications = head("Applications", ask(read_applications), _freshness)
    if applications is None:
        return
    lag = ask_every(LAG_SECONDS, read_lag, current_time().replace(second=0, microsecond=0)).value or {}
    on_cluster = {
        application.name: application for application in ask_every(LAG_SECONDS, read_spark_applications).value or ()
    }
    listed = [job for job in Job if job in ALWAYS or job in applications.by_job]
    for column, job in zip(st.columns(len(listed)), listed, strict=True):
        with column, st.container(border=True, height="stretch"):
            pod = next((application for name, application in on_cluster.items() if name.endswith(job)), None)
            _card(job, applications.by_job.get(job), applications.read_at, lag.get(job, ()), pod)


def _freshness(applications: Applications) -> Freshness:
    reports = [application.reported_at for application in applications.by_job.values()]
    if not reports:
        return Freshness(State.NEVER_HAD_DATA, "No application has run on this database yet.")
    phase = {health(application, applications.read_at) for application in applications.by_job.values()}
    age = span(applications.read_at - max(reports))
    if phase <= {Health.STALE, Health.STOPPED}:
        return Freshness(State.STALE, f"No application has reported for {age}: these are their last values.")
    if phase <= {Health.IDLE, Health.STALE, Health.STOPPED}:
        return Freshness(State.IDLE, f"Nothing to do; last report {age} ago.")
    return Freshness(State.LIVE, f"Last report {age} ago; an application reports every 5 s.")


def _card(
    job: str, application: Application | None, now: datetime, lag: tuple[float, ...], pod: SparkApplication | None
) -> None:
    phase = health(application, now)
    icon, color = _BADGES[phase]
    st.markdown(f"**{job}** &nbsp; :{color}-badge[{icon} {phase}]")
    if application is None:
        st.caption("This application has not run on this database yet.")
        return
    behind = "unknown" if application.seconds_behind is None else f"{application.seconds_behind:,.1f}"
    # Beside each other where the card has room, else one below the other: no label is cut.
    with st.container(horizontal=True):
        st.metric(
            "Records behind",
            count(application.records_behind),
            help="Input records that are not committed yet; below it the last half hour.",
            width="content",
        )
        st.metric(
            "Seconds behind",
            behind,
            help="Age of the oldest input record that is not committed yet.",
            width="content",
        )
    if len(lag) > 1:
        st.altair_chart(_sparkline(lag), alt=f"Records behind of {job} in the last half hour")
    facts = _facts(application, now)
    if pod is not None:
        facts.append(f"Kubernetes: {pod.state.lower()}, {pod.restarts:,} restarts {literal(pod.message)}")
    st.markdown("  \n".join(f":small[{fact}]" for fact in facts))
    reported = span(now - application.reported_at)
    if phase is Health.STALE:
        st.warning(f"No report for {reported}: these are its last values.", icon=":material/warning:")
    else:
        st.caption(f"Reported {reported} ago")


def _sparkline(lag: tuple[float, ...]) -> alt.Chart:
    """The browser's console is silent with it: that of `st.metric` begins without data, and warns of it."""
    points = [{"at": at, "records": records} for at, records in enumerate(lag)]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(points))
        .mark_area(opacity=0.5)
        .encode(
            x=alt.X("at:Q", axis=None, scale=alt.Scale(domain=[0, len(lag) - 1], nice=False)),
            y=alt.Y("records:Q", axis=None, scale=alt.Scale(domain=[0, max(1.0, *lag)], nice=False)),
        )
        .properties(height=40)
    )
    return chart


def _facts(application: Application, now: datetime) -> list[str]:
    facts = [_last_batch(application, now)]
    if application.waiting_because is not None:
        facts.append(f"Waits: {_first_line(application.waiting_because)}")
    if application.records_behind and application.catch_up_seconds is not None:
        facts.append(f"Caught up in about {span(timedelta(seconds=application.catch_up_seconds))}")
    facts += topic_facts(application.topics)
    facts.append(f"Restarts: {application.starts - 1:,}")
    if application.exit_at is not None:
        facts.append(f"Last ended {span(now - application.exit_at)} ago: {_first_line(application.exit_reason)}")
    if application.frontier is not None:
        facts.append(f"Frontier: {instant(application.frontier)} UTC")
    return facts


def _last_batch(application: Application, now: datetime) -> str:
    if application.last_batch_at is None:
        return "Last batch: none since it started"
    records, took_ms = count(application.last_batch_records), count(application.last_batch_ms)
    return f"Last batch: {records} records in {took_ms} ms, {span(now - application.last_batch_at)} ago"


def _first_line(reason: str | None) -> str:
    words = (reason or "").strip().splitlines()
    return literal((words[0] if words else "no reason given")[:120])
