"""The dashboard, as `python -m dashboard` serves it; `settings.py` reads its environment."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard.panel import backend
from dashboard.views import (
    alerts,
    audit,
    bills,
    event,
    invoices,
    joins,
    late,
    overview,
    runbook,
    sessions,
    sources,
    windows,
)
from dashboard.wording import literal

st.set_page_config(page_title="Weir", page_icon=":material/water:", layout="wide")

try:
    scope = backend().scope
except ValueError as problem:
    st.error(str(problem), icon=":material/lock:")
    st.stop()

PAGES = [
    st.Page(overview.show, title="Overview", icon=":material/monitoring:", url_path="overview", default=True),
    st.Page(windows.show, title="Live windows", icon=":material/timer:", url_path="windows"),
    st.Page(sessions.show, title="Sessions", icon=":material/forum:", url_path="sessions"),
    st.Page(late.show, title="Late and dropped", icon=":material/history:", url_path="late"),
    st.Page(joins.show, title="Joins", icon=":material/join_inner:", url_path="joins"),
    st.Page(bills.show, title="Bills", icon=":material/receipt_long:", url_path="bills"),
    st.Page(invoices.show, title="Invoices", icon=":material/request_quote:", url_path="invoices"),
    st.Page(event.show, title="One event", icon=":material/manage_search:", url_path="event"),
    st.Page(audit.show, title="Audit", icon=":material/fact_check:", url_path="audit"),
    st.Page(sources.show, title="Sources", icon=":material/sensors:", url_path="sources"),
    st.Page(alerts.show, title="Alerts", icon=":material/notifications:", url_path="alerts"),
    st.Page(runbook.show, title="Runbook", icon=":material/menu_book:", url_path="runbook"),
]

st.logo(str(Path(__file__).with_name("weir.svg")), size="large")
st.html(Path(__file__).with_name("style.css"))
page = st.navigation(PAGES, expanded=True)
with st.sidebar:
    if scope.is_all:
        st.caption(":material/visibility: All accounts")
    else:
        st.caption(f":material/lock: Only {literal(', '.join(sorted(scope.accounts or ())))}")
    st.caption(":material/schedule: All times are UTC")
page.run()
