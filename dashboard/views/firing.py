"""Alerts that fire now, each with its runbook: the same list on the overview and the alerts page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import streamlit as st

from dashboard.freshness import Freshness, State
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.alerts import Alert, read_firing, read_rules
from dashboard.wording import instant, several, span

REFRESH_SECONDS = 3
RULES_SECONDS = 30
"""Rules change with a deployment, and a Prometheus of many applications has many."""
MAX_SHOWN = 10
"""Alerts of one card; the others are counted."""

_SEVERITIES = {"page": (":material/notifications_active:", "red"), "ticket": (":material/assignment:", "orange")}
_OF_A_PLACE = ("namespace", "release", "pod", "container", "endpoint", "instance", "prometheus")
"""Labels that say where something runs, not what it is about."""
_STATES = {
    "firing": (":material/local_fire_department:", "red"),
    "pending": (":material/hourglass_top:", "orange"),
    "suppressed": (":material/notifications_off:", "gray"),
}


@st.fragment(run_every=REFRESH_SECONDS)
def show_firing() -> None:
    """Draw the firing alerts; the list refreshes itself."""
    alerts = head("Firing alerts", ask_every(REFRESH_SECONDS / 2, read_firing), _freshness)
    if alerts is None:
        return
    if not alerts:
        show_none("No alert is firing.")
    show_alerts(alerts)


def show_none(sentence: str) -> None:
    """Draw that there is no alert, or that there could be none."""
    if ask_every(RULES_SECONDS, read_rules).value == 0:
        st.warning(
            "Prometheus has no rules of Weir, so that no alert can fire. On a cluster set `prometheusRule.enabled`, and"
            " in `prometheusRule.labels` what your Prometheus selects.",
            icon=":material/warning:",
        )
    else:
        st.success(sentence, icon=":material/check_circle:")


def _freshness(alerts: tuple[Alert, ...]) -> Freshness:
    if not alerts:
        return Freshness(State.LIVE, "Alertmanager answered just now and has no alert.")
    return Freshness(State.LIVE, f"{several(len(alerts), 'alert')} in Alertmanager, read just now.")


def show_alerts(alerts: Sequence[Alert]) -> None:
    """Draw a card for all alerts of one name and state: what it means, its runbook, and each one with its labels."""
    by_card: dict[tuple[str, str, str], list[Alert]] = {}
    for alert in alerts:
        by_card.setdefault((alert.name, alert.state, alert.severity), []).append(alert)
    now = current_time()
    for members in by_card.values():
        with st.container(border=True):
            _card(members, now)


def _card(alerts: Sequence[Alert], now: datetime) -> None:
    first = alerts[0]
    icon, color = _STATES[first.state]
    sign, hue = _SEVERITIES.get(first.severity, (":material/info:", "gray"))
    count = f" :gray-badge[{len(alerts):,} of them]" if len(alerts) > 1 else ""
    st.markdown(
        f"**{first.name}** &nbsp; :{color}-badge[{icon} {first.state}] :{hue}-badge[{sign} {first.severity}]{count}"
    )
    common = set(_texts(first)).intersection(*map(_texts, alerts))
    for text, show in zip(_texts(first), (st.markdown, st.caption), strict=False):
        if text in common:
            show(text)
    lines = [_line(alert, common, now) for alert in alerts[:MAX_SHOWN]]
    lines += [f"and {len(alerts) - MAX_SHOWN:,} more"] if len(alerts) > MAX_SHOWN else []
    lines += [f"[Runbook]({first.runbook_url})"] if first.runbook_url else []
    st.markdown(
        f":small[{' · '.join(lines)}]" if len(alerts) == 1 else "\n".join(f"- :small[{line}]" for line in lines)
    )


def _line(alert: Alert, common: Collection[str], now: datetime) -> str:
    """One alert of a card: the texts that differ from the others', its labels, and since when."""
    own = [text for text in _texts(alert) if text not in common]
    labels = [f"{name} {value}" for name, value in alert.labels if name not in _OF_A_PLACE]
    return " · ".join([*own, *labels, f"Since {instant(alert.since)} UTC, {span(now - alert.since)}"])


def _texts(alert: Alert) -> list[str]:
    """Its summary and its description, as far as it has them."""
    return [text for text in (alert.summary, alert.description) if text]
