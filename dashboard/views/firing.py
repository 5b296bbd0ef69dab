"""Alerts that fire now, each with its runbook: the same list on the overview and on the alerts page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard.freshness import Freshness, State
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.alerts import Alert, read_firing
from dashboard.wording import instant, span

REFRESH_SECONDS = 3

_SEVERITIES = {"page": (":material/notifications_active:", "red"), "ticket": (":material/assignment:", "orange")}
_STATES = {
    "firing": (":material/local_fire_department:", "red"),
    "pending": (":material/hourglass_top:", "orange"),
    "suppressed": (":material/notifications_off:", "gray"),
}


@st.fragment(run_every=REFRESH_SECONDS)
def show_firing() -> None:
    """Draw what fires; drawn again by itself."""
    alerts = head("Firing alerts", ask_every(REFRESH_SECONDS / 2, read_firing), _judge)
    if alerts is None:
        return
    if not alerts:
        st.success("Nothing fires.", icon=":material/check_circle:")
    show_alerts(alerts)


def _judge(alerts: tuple[Alert, ...]) -> Freshness:
    if not alerts:
        return Freshness(State.LIVE, "Alertmanager answered just now and holds no alert.")
    return Freshness(State.LIVE, f"{len(alerts):,} in Alertmanager, just now.")


def show_alerts(alerts: Sequence[Alert]) -> None:
    """Draw alerts as cards: state, severity, what it means, since when, and the way to its runbook."""
    now = current_time()
    for alert in alerts:
        with st.container(border=True):
            icon, color = _STATES[alert.state]
            sign, hue = _SEVERITIES.get(alert.severity, (":material/info:", "gray"))
            st.markdown(
                f"**{alert.name}** &nbsp; :{color}-badge[{icon} {alert.state}] :{hue}-badge[{sign} {alert.severity}]"
            )
            st.markdown(alert.summary or alert.description)
            if alert.summary and alert.description:
                st.caption(alert.description)
            labels = " · ".join(f"{name} {value}" for name, value in alert.labels if name in ("job", "meter", "source"))
            since = f"Since {instant(alert.since)} UTC, {span(now - alert.since)}"
            runbook = f" · [Runbook]({alert.runbook_url})" if alert.runbook_url else ""
            st.markdown(f":small[{since}{f' · {labels}' if labels else ''}{runbook}]")
